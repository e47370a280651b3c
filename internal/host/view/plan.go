// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/preflight"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Plan returns a plan as `lockstep plan` prints it.
func Plan(name string, r *pb.PlanResponse) string {
	roles := rolesAfter(r)
	rows := [][]string{
		workloadRow(name, r.GetReplicas(), r.GetSize(), roles != ""),
		{"Plan", StyleWord(r.GetStyle()) + " release"},
		{"Start-up", startupTime(r)},
	}
	if r.GetEstimate() != nil {
		rows = append(rows, []string{"Time", r.GetEstimate().AsDuration().Round(time.Second).String() + " without pauses"})
	}
	text := alignColumns(rows)
	if len(r.GetSteps()) > 0 {
		text += "\n" + stepTable(r) + roles
	}
	var notes strings.Builder
	for _, w := range r.GetBlockers() {
		fmt.Fprintf(&notes, "%s %s [%s]\n", Alert.Render("blocked:"), OneLine(w.GetMessage()), w.GetCode())
	}
	for _, w := range r.GetWarnings() {
		fmt.Fprintf(&notes, "%s %s [%s]\n", Other.Render("warning:"), OneLine(w.GetMessage()), w.GetCode())
	}
	for _, f := range r.GetFindings() {
		fmt.Fprintf(&notes, "preflight %s: %s [%s]\n", SeverityWord(f.GetSeverity()), OneLine(preflight.Short(f)), f.GetRule())
	}
	if notes.Len() > 0 {
		text += "\n" + notes.String()
	}
	return text
}

func startupTime(r *pb.PlanResponse) string {
	switch took := r.GetStartup().AsDuration(); {
	case took == 0:
		return "unknown"
	case r.GetStartupGroups() > 0:
		return fmt.Sprintf("%s a group, the median of %s", took, countOf(r.GetStartupGroups(), "group"))
	default:
		return took.String() + " a group"
	}
}

// stepTable returns one row per step.
func stepTable(r *pb.PlanResponse) string {
	rows := make([][]string, 0, 1+len(r.GetSteps()))
	rows = append(rows, []string{"STEP", "OLD", "NEW", "READY", "EXTRA", "PODS", "CAPACITY", "NEW REQUESTS", "TIME", "ALSO REQUESTED"})
	for _, s := range r.GetSteps() {
		rows = append(rows, []string{
			s.GetName(), fmt.Sprint(s.GetStableGroups()), fmt.Sprint(s.GetCanaryGroups()), fmt.Sprint(s.GetReadyGroups()),
			fmt.Sprintf("+%d", s.GetExtraGroups()), fmt.Sprintf("+%d", s.GetExtraPods()), capacityRange(s), fmt.Sprintf("%d%%", s.GetTrafficWeight()),
			estimateText(s.GetEstimate()), resourceList(s.GetExtraResources()),
		})
	}
	return alignColumns(rows)
}

// rolesAfter returns the groups of each role after each step, "" without roles.
func rolesAfter(r *pb.PlanResponse) string {
	var rows [][]string
	for _, s := range r.GetSteps() {
		var all []string
		for _, role := range s.GetRoles() {
			all = append(all, fmt.Sprintf("%s %d/%d", OneLine(role.GetName()), role.GetUpdated(), role.GetReplicas()))
		}
		if len(all) > 0 {
			rows = append(rows, []string{s.GetName(), strings.Join(all, ", ")})
		}
	}
	if len(rows) == 0 {
		return ""
	}
	return "\n" + alignColumns(append([][]string{{"STEP", "NEW GROUPS BY ROLE"}}, rows...))
}

// capacityRange returns the minimum of ready and the maximum of existing groups, in percent.
func capacityRange(s *pb.PlanStep) string {
	// Rounded to the nearest, 99.6 % would read as full capacity.
	return fmt.Sprintf("%.0f..%.0f%%", math.Floor(100*s.GetMinCapacity()), 100*s.GetMaxCapacity())
}

func estimateText(d *durationpb.Duration) string {
	if d == nil {
		return "-"
	}
	return d.AsDuration().Round(time.Second).String()
}

// resourceList lists devices, which are scarce, first.
func resourceList(all map[string]string) string {
	names := slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		return cmp.Or(strings.Count(b, "/")-strings.Count(a, "/"), strings.Compare(a, b))
	})
	parts := make([]string, 0, len(names))
	for _, name := range names {
		parts = append(parts, name+" "+all[name])
	}
	return orDash(strings.Join(parts, ", "))
}

// Preflight returns the findings about a workload as `lockstep preflight` prints them.
func Preflight(name string, r *pb.PreflightResponse) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Workload  %s\n", OneLine(name)) // it may be of a file
	for _, f := range r.GetFindings() {
		where := preflight.Text(f.GetObject())
		if f.GetField() != "" {
			where += ", " + f.GetField()
		}
		severity := severityStyles[f.GetSeverity()].Render(fmt.Sprintf("%-8s", SeverityWord(f.GetSeverity())))
		fmt.Fprintf(&b, "\n%s  %s [%s]\n          %s\n     why  %s\n     fix  %s\n",
			severity, OneLine(f.GetMessage()), f.GetRule(), OneLine(where), OneLine(f.GetWhy()), OneLine(f.GetFix()))
	}
	b.WriteString("\n")
	for _, u := range r.GetUnchecked() {
		fmt.Fprintf(&b, "not checked: %s (needs %s): %s\n", strings.Join(u.GetRules(), ", "), OneLine(u.GetSubject()), OneLine(u.GetReason()))
	}
	counts := map[pb.Severity]int32{}
	for _, f := range r.GetFindings() {
		counts[f.GetSeverity()]++
	}
	fmt.Fprintf(&b, "%s, %s, %s\n", countOf(counts[pb.Severity_SEVERITY_ERROR], "error"), countOf(counts[pb.Severity_SEVERITY_WARNING], "warning"),
		countOf(counts[pb.Severity_SEVERITY_INFO], "note"))
	return b.String()
}

// SeverityWord returns the severity in lower case, and "note" for SEVERITY_INFO.
func SeverityWord(s pb.Severity) string {
	if s == pb.Severity_SEVERITY_INFO {
		return "note"
	}
	return strings.ToLower(strings.TrimPrefix(s.String(), "SEVERITY_"))
}
