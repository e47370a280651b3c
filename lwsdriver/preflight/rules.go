// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"slices"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Rule is one thing that hurts.
type Rule struct {
	// ID is machine-readable, CamelCase, and never changes.
	ID       string
	Severity pb.Severity
	// Title says what is wrong in a few words, Why why it hurts, Fix what to do.
	Title, Why, Fix string
	// Needs is what it looks at besides the workload's spec. Empty: nothing.
	Needs Source
	// Applies says whether there is anything to look at. Nil: always.
	Applies func(*Snapshot) bool
	// Check returns where it is so.
	Check func(*Snapshot) []Hit
}

// Hit is one place where a rule is broken.
type Hit struct {
	// Object is where. Nil: the workload.
	Object *pb.ObjectRef
	// Field is its field.
	Field string
	// Message says what is so.
	Message string
	// Fix and Severity overrule the rule's.
	Fix      string
	Severity pb.Severity
}

const (
	note    = pb.Severity_SEVERITY_INFO
	warning = pb.Severity_SEVERITY_WARNING
	grave   = pb.Severity_SEVERITY_ERROR
)

// Rules are all of them, in the order in which their findings are told.
func Rules() []Rule {
	return slices.Concat(ownerRules(), paceRules(), roomRules(), gateRules(), probeRules(), endingRules(), budgetRules(), serviceRules(), volumeRules(),
		spreadRules(), scalerRules(), trackingRules())
}

// one is a list of a single hit.
func one(h Hit) []Hit { return []Hit{h} }
