// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func TestCheckDecision(t *testing.T) {
	at := func(phase record.Phase, added ...Workload) Observation {
		return Observation{
			Stable: Workload{Name: "vllm", Replicas: 4, Size: 2, Revision: "B", Rolling: record.Hold()}, Added: added,
			Record: &record.Record{Release: &record.Release{Phase: phase, StableRevision: "A", UpdateRevision: "B"}},
		}
	}
	set := func(phase record.Phase, r rolling) SetStable {
		return SetStable{Record: record.Record{Release: &record.Release{Phase: phase}}, Rolling: &r}
	}
	returned := func(phase record.Phase) Observation {
		o := at(phase)
		o.Stable.Revision = "A"
		return o
	}
	routed := func(phase record.Phase, v routing, added ...Workload) Observation {
		o := at(phase, added...)
		o.Traffic = v.observe(o)
		return o
	}
	gone := func(o Observation) Observation {
		o.Stable.Deleting = true
		return o
	}
	isolated, split := routing{isolated: true, stable: 4}, routing{isolated: true, weight: 10, stable: 4}
	canary, old := Workload{Name: "vllm-b", Carries: "B"}, Workload{Name: "vllm-a", Carries: "A"}
	native := rollingOf(0, "1", "0")
	tests := []struct {
		name   string
		reason string
		o      Observation
		a      Action
		bad    bool
	}{
		{"None", "Doing nothing is safe.", at(record.Progressing), nil, false},
		{"SecondCanary", "Never two canaries.", at(record.Progressing, old), CreateCanary{Replicas: 1}, true},
		{"CanaryAboveReplicas", "A canary is at most as large as the workload.", at(record.Progressing), CreateCanary{Replicas: 5}, true},
		{"CanaryOfAll", "A canary may be as large as the workload.", at(record.Progressing), CreateCanary{Replicas: 4}, false},
		{"ScaleAboveReplicas", "A canary is at most as large as the workload.", at(record.Progressing, canary), ScaleCanary{Replicas: 5}, true},
		{"ScaleBelowZero", "Replicas are not negative.", at(record.Progressing, canary), ScaleCanary{Replicas: -1}, true},
		{"DeleteInBatches", "Canary capacity stays while batches of it run.", at(record.Progressing, canary), DeleteCanary{}, true},
		{"RemoveFinalizerInBatches", "Canary capacity stays while batches of it run.", at(record.Progressing, canary), RemoveFinalizer{}, true},
		{"DeleteOldInBatches", "A canary of another template is deleted.", at(record.Progressing, old), DeleteCanary{}, false},
		{"DeleteInPromotion", "Stable is not promoted yet.", at(record.Promoting, canary), DeleteCanary{}, true},
		{"DeleteAfterPromotion", "Nothing added is left.", at(record.Promoted, canary), DeleteCanary{}, false},
		{"DeleteInRollback", "Nothing added is left.", at(record.CleaningUp, canary), DeleteCanary{}, false},
		{"PromoteUnrequested", "Only Finalize begins a promotion.", at(record.Progressing), set(record.Promoting, native), true},
		{"ReleaseHoldInBatches", "Stable capacity is not touched before the host promotes.", at(record.Progressing), set(record.Progressing, native), true},
		{"ReleaseHoldInRollback", "Stable capacity is not touched by a rollback.", at(record.CleaningUp), set(record.CleaningUp, native), true},
		{"ReleaseHoldAtTheEnd", "The write that ends a promotion restores the hold.", at(record.Promoting), set(record.Promoted, native), true},
		{"DeleteWhileRollingBack", "Stable is not restored yet.", at(record.RollingBack, canary), DeleteCanary{}, true},
		{"ReleaseHoldToRollBack", "The template is the stable one.", returned(record.CleaningUp), set(record.RollingBack, native), false},
		{"RollBackToAnother", "A rollback never rolls forward.", at(record.CleaningUp), set(record.RollingBack, native), true},
		{"CreateUnfenced", "Canary leaders would get requests through the stable Service.", routed(record.Progressing, routing{}), CreateCanary{Replicas: 1}, true},
		{"CreateIsolated", "They would not.", routed(record.Progressing, isolated), CreateCanary{Replicas: 1}, false},
		{"GrowUnfenced", "So would later leaders.", routed(record.Progressing, routing{}, canary), ScaleCanary{Replicas: 1}, true},
		{"GrowIsolated", "They would not.", routed(record.Progressing, isolated, canary), ScaleCanary{Replicas: 1}, false},
		{"ShrinkNotIsolated", "Fewer leaders get fewer requests.", routed(record.Progressing, routing{}, canary), ScaleCanary{Replicas: 0}, false},
		{"DeleteWithShare", "It still receives requests.", routed(record.CleaningUp, split, canary), DeleteCanary{}, true},
		{"RemoveFinalizerWithShare", "It still receives requests.", routed(record.CleaningUp, split, canary), RemoveFinalizer{}, true},
		{"DeleteWithoutShare", "It receives none.", routed(record.CleaningUp, isolated, canary), DeleteCanary{}, false},
		{"RemoveFinalizerOfDeleted", "The stable leaders are being deleted, too.", gone(routed(record.CleaningUp, split, canary)), RemoveFinalizer{}, false},
		{"ReleaseHoldToPromote", "Promotion is what releases it.", at(record.Promoting), set(record.Promoting, native), false},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			err := checkDecision(tc.o, nil, Decision{Action: tc.a})
			assert.Equal(t, tc.bad, err != nil, "%s\nerror %v, want one: %t", tc.reason, err, tc.bad)
		})
	}
}

func TestImpossibleObservation(t *testing.T) {
	for name, o := range map[string]Observation{
		"negative replicas": {Stable: Workload{Name: "vllm", Replicas: -1, Size: 1}},
		"no size":           {Stable: Workload{Name: "vllm", Replicas: 1}},
		"added to itself":   {Stable: Workload{Name: "vllm", Size: 1}, Added: []Workload{{Name: "vllm"}}},
	} {
		d := reconcile(o)
		assert.True(t, d.Action == nil && d.State == pb.State_STATE_FAILED && d.Reason == ReasonInvariantViolation, "%s: %+v", name, d)
	}
}

func TestSupports(t *testing.T) {
	for value, name := range pb.Style_name {
		assert.Equal(t, value != 0, Supports(pb.Style(value)), "Supports(%s)", name)
	}
}
