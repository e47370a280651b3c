// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"cmp"
	"fmt"
	"slices"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Check runs every rule. The answer is never nil; findings are ordered by severity, then as the rules are.
func Check(s *Snapshot) *pb.PreflightResponse {
	r := &pb.PreflightResponse{Workload: &pb.WorkloadRef{Namespace: s.Workload.Namespace, Name: s.Workload.Name, Kind: kind}}
	blind := map[Source][]string{}
	for _, rule := range Rules() {
		if rule.Applies != nil && !rule.Applies(s) {
			continue
		}
		if _, unseen := s.Unseen[rule.Needs]; unseen && rule.Needs != "" {
			blind[rule.Needs] = append(blind[rule.Needs], rule.ID)
			continue
		}
		for _, h := range rule.Check(s) {
			r.Findings = append(r.Findings, rule.finding(s, h))
		}
	}
	slices.SortStableFunc(r.Findings, func(a, b *pb.Finding) int { return cmp.Compare(b.GetSeverity(), a.GetSeverity()) })
	for source, rules := range blind {
		r.Unchecked = append(r.Unchecked, &pb.Unchecked{Subject: string(source), Reason: s.Unseen[source], Rules: rules})
	}
	slices.SortFunc(r.Unchecked, func(a, b *pb.Unchecked) int { return cmp.Compare(a.GetSubject(), b.GetSubject()) })
	return r
}

func (rule Rule) finding(s *Snapshot, h Hit) *pb.Finding {
	f := &pb.Finding{
		Rule: rule.ID, Severity: rule.Severity, Object: h.Object, Field: h.Field, Message: h.Message, Why: rule.Why, Fix: rule.Fix,
	}
	if f.Object == nil {
		f.Object = &pb.ObjectRef{Kind: kind, Namespace: s.Workload.Namespace, Name: s.Workload.Name}
	}
	if h.Severity != pb.Severity_SEVERITY_UNSPECIFIED {
		f.Severity = h.Severity
	}
	if h.Fix != "" {
		f.Fix = h.Fix
	}
	return f
}

// Text is an object as people name it: "Service default/vllm".
func Text(o *pb.ObjectRef) string {
	if o.GetNamespace() == "" {
		return o.GetKind() + " " + o.GetName()
	}
	return fmt.Sprintf("%s %s/%s", o.GetKind(), o.GetNamespace(), o.GetName())
}

// Warnings are the findings that are at least warnings, briefly, but for those whose rule is among the codes already.
func Warnings(findings []*pb.Finding, told ...*pb.Warning) []*pb.Warning {
	var out []*pb.Warning
	for _, f := range Untold(findings, told...) {
		if f.GetSeverity() >= pb.Severity_SEVERITY_WARNING {
			out = append(out, &pb.Warning{Code: f.GetRule(), Message: f.GetMessage() + ". " + f.GetFix()})
		}
	}
	return out
}

// Untold are the findings but for those whose rule is the code of a warning.
func Untold(findings []*pb.Finding, told ...*pb.Warning) []*pb.Finding {
	return slices.DeleteFunc(slices.Clone(findings), func(f *pb.Finding) bool {
		return slices.ContainsFunc(told, func(w *pb.Warning) bool { return w.GetCode() == f.GetRule() })
	})
}
