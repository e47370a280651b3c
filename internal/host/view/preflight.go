// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"strings"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/preflight"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Preflight returns the findings about a workload as `lockstep preflight` prints them. locate returns where a field is in
// files, as "file:line", or "" if that is unknown. Nil: there are no files.
func Preflight(name string, r *pb.PreflightResponse, locate func(ref *pb.ObjectRef, field string) string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Workload  %s\n", name)
	for _, f := range r.GetFindings() {
		where := preflight.Text(f.GetObject())
		if f.GetField() != "" {
			where += ", " + f.GetField()
		}
		if locate != nil {
			if at := locate(f.GetObject(), f.GetField()); at != "" {
				where = at + ": " + where
			}
		}
		severity := severityStyle(f.GetSeverity()).Render(fmt.Sprintf("%-8s", SeverityWord(f.GetSeverity())))
		fmt.Fprintf(&b, "\n%s  %s [%s]\n          %s\n     why  %s\n     fix  %s\n",
			severity, OneLine(f.GetMessage()), f.GetRule(), where, OneLine(f.GetWhy()), OneLine(f.GetFix()))
	}
	b.WriteString("\n")
	for _, u := range r.GetUnchecked() {
		fmt.Fprintf(&b, "not checked: %s (needs %s): %s\n", strings.Join(u.GetRules(), ", "), u.GetSubject(), OneLine(u.GetReason()))
	}
	counts := map[pb.Severity]int32{}
	for _, f := range r.GetFindings() {
		counts[f.GetSeverity()]++
	}
	fmt.Fprintf(&b, "%s, %s, %s\n", count(counts[pb.Severity_SEVERITY_ERROR], "error"), count(counts[pb.Severity_SEVERITY_WARNING], "warning"),
		count(counts[pb.Severity_SEVERITY_INFO], "note"))
	return b.String()
}

// SeverityWord returns the severity in lower case, and "note" for SEVERITY_INFO.
func SeverityWord(s pb.Severity) string {
	if s == pb.Severity_SEVERITY_INFO {
		return "note"
	}
	return strings.ToLower(strings.TrimPrefix(s.String(), "SEVERITY_"))
}
