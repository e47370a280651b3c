// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"cmp"
	"fmt"
	"slices"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Check runs every rule. The result is never nil; findings are ordered by severity, then as in Rules.
func Check(s *Inventory) *pb.PreflightResponse {
	r := &pb.PreflightResponse{Workload: &pb.WorkloadRef{Namespace: s.Workload.Namespace, Name: s.Workload.Name, Kind: s.kind()}}
	blind := map[Source][]string{}
	for _, rule := range Rules() {
		judged := rule.judged(s)
		if rule.Applies != nil {
			judged = slices.DeleteFunc(judged, func(s *Inventory) bool { return !rule.Applies(s) })
		}
		// A rule whose source was not read must not pass in silence, unless it would judge nothing anyway.
		if _, unseen := s.Unseen[rule.Needs]; unseen && rule.Needs != "" && len(judged) > 0 {
			blind[rule.Needs] = append(blind[rule.Needs], rule.ID)
			continue
		}
		for _, part := range judged {
			rule.Check(part, func(h Hit) { r.Findings = append(r.Findings, rule.finding(s, part.part.inSet(h))) })
		}
	}
	slices.SortStableFunc(r.Findings, func(a, b *pb.Finding) int { return cmp.Compare(b.GetSeverity(), a.GetSeverity()) })
	for source, rules := range blind {
		r.Unchecked = append(r.Unchecked, &pb.Unchecked{Subject: string(source), Reason: s.Unseen[source], Rules: rules})
	}
	slices.SortFunc(r.Unchecked, func(a, b *pb.Unchecked) int { return cmp.Compare(a.GetSubject(), b.GetSubject()) })
	return r
}

func (rule Rule) finding(s *Inventory, h Hit) *pb.Finding {
	workload := &pb.ObjectRef{Kind: s.kind(), Namespace: s.Workload.Namespace, Name: s.Workload.Name}
	return &pb.Finding{
		Rule: rule.ID, Severity: cmp.Or(h.Severity, rule.Severity), Object: cmp.Or(h.Object, workload), Field: h.Field, Message: h.Message,
		Why: rule.Why, Fix: cmp.Or(h.Fix, rule.Fix),
	}
}

// Text returns the name of an object in messages: "Service default/vllm".
func Text(o *pb.ObjectRef) string {
	if o.GetNamespace() == "" {
		return o.GetKind() + " " + o.GetName()
	}
	return fmt.Sprintf("%s %s/%s", o.GetKind(), o.GetNamespace(), o.GetName())
}

// Short returns what a finding is about and the remedy, and the object if it is not the workload.
func Short(f *pb.Finding) string {
	text := f.GetMessage() + ". " + f.GetFix()
	if k := f.GetObject().GetKind(); k == kind || k == kindSet {
		return text
	}
	return Text(f.GetObject()) + ": " + text
}

// Warnings returns the findings of at least severity warning, shortened, without those whose rule is among the codes.
func Warnings(findings []*pb.Finding, reported ...*pb.Warning) []*pb.Warning {
	var out []*pb.Warning
	for _, f := range Unreported(findings, reported...) {
		if f.GetSeverity() >= pb.Severity_SEVERITY_WARNING {
			out = append(out, &pb.Warning{Code: f.GetRule(), Message: Short(f)})
		}
	}
	return out
}

// Unreported returns the findings without those whose rule is the code of a warning.
func Unreported(findings []*pb.Finding, reported ...*pb.Warning) []*pb.Finding {
	return slices.DeleteFunc(slices.Clone(findings), func(f *pb.Finding) bool {
		return slices.ContainsFunc(reported, func(w *pb.Warning) bool { return w.GetCode() == f.GetRule() })
	})
}

// Rule is a known cause of trouble in releases.
type Rule struct {
	// ID is machine-readable, CamelCase, and never changes.
	ID       string
	Severity pb.Severity
	// Title is what is wrong in a few words, Why its consequence, Fix what to do.
	Title, Why, Fix string
	// Details are what it finds or leaves out where that needs saying, in Markdown with links relative to docs.
	Details string
	// Needs is the source that it reads besides the workload's spec. Empty means none.
	Needs Source
	// Whole is true if it is judged once for a DisaggregatedSet, and not for each of its roles.
	Whole bool
	// Applies reports whether the rule applies. Nil means always.
	Applies func(*Inventory) bool
	// Check reports where the rule is broken.
	Check func(s *Inventory, report func(Hit))
}

// Hit is one place where a rule is broken.
type Hit struct {
	// Object is what breaks it. Nil means the workload.
	Object *pb.ObjectRef
	// Field is its field.
	Field string
	// Message is what was found.
	Message string
	// Fix and Severity overrule the rule's.
	Fix      string
	Severity pb.Severity
}

const (
	note    = pb.Severity_SEVERITY_INFO
	warning = pb.Severity_SEVERITY_WARNING
	severe  = pb.Severity_SEVERITY_ERROR
)

// Rules returns all rules, in the order in which findings are reported.
func Rules() []Rule {
	return slices.Concat(ownerRules, paceRules, capacityRules, gateRules, probeRules, endingRules, budgetRules, serviceRules, routeRules,
		volumeRules, liveRules, scalerRules, trackingRules)
}
