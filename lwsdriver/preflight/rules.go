// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"slices"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

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
	// Check returns where the rule is broken.
	Check func(*Inventory) []Hit
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
	return slices.Concat(ownerRules(), paceRules(), roomRules(), gateRules(), probeRules(), endingRules(), budgetRules(), serviceRules(), routeRules(), volumeRules(), liveRules(),
		spreadRules(), scalerRules(), trackingRules())
}

// one returns a list of a single hit.
func one(h Hit) []Hit { return []Hit{h} }
