// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// A look is kept until a change of its workload is notified, a pass ends, or the time comes at which the decision may change.
func TestLookIsKept(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*fixture, time.Duration)
		kept   bool
	}{
		{"nothing", func(*fixture, time.Duration) {}, true},
		{"just before the recheck", func(b *fixture, recheck time.Duration) { b.at(recheck - 1) }, true},
		{"the recheck", func(b *fixture, recheck time.Duration) { b.at(recheck) }, false},
		{"a change", func(b *fixture, _ time.Duration) { b.Observer.Notify(lwstest.VLLM) }, false},
		{"a change of another workload", func(b *fixture, _ time.Duration) { b.Observer.Notify(types.NamespacedName{Name: "other"}) }, true},
		{"a pass", func(b *fixture, _ time.Duration) { _, _, _ = b.Reconcile(t.Context(), lwstest.VLLM) }, false},
		{"it was deleted", func(b *fixture, _ time.Duration) { b.forget(lwstest.VLLM) }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newFixture(t, lwstest.InPhase(t, record.Progressing))
			before, d, err := b.Look(lwstest.VLLM)
			if err != nil || d.Recheck == 0 {
				t.Fatalf("%+v, %v", d, err)
			}
			tt.change(b, d.Recheck)
			after, _, err := b.Look(lwstest.VLLM)
			if err != nil || (after == before) != tt.kept {
				t.Errorf("kept %t, %v", after == before, err)
			}
		})
	}
}

// at sets the clock to so long after noon.
func (b *fixture) at(after time.Duration) {
	b.config.Now = func() time.Time { return lwstest.Noon.Add(after) }
}

// What is observed while a change comes may be from before it, so it is not kept.
func TestLookDuringChangeIsNotKept(t *testing.T) {
	b := newFixture(t, lwstest.InPhase(t, record.Progressing))
	b.config.Decided = func(plan.Observation, plan.Intent, plan.Decision, error) { b.Observer.Notify(lwstest.VLLM) }
	before, _, _ := b.Look(lwstest.VLLM)
	if after, _, err := b.Look(lwstest.VLLM); err != nil || after == before {
		t.Errorf("kept %t, %v", after == before, err)
	}
}

// A decision that depends on what other workloads become is made anew each time.
func TestLookThatDependsOnOthersIsNotKept(t *testing.T) {
	rec, err := record.DecodeRecord(lwstest.InPhase(t, record.Promoting).Annotations[record.RecordAnnotation])
	if err != nil {
		t.Fatal(err)
	}
	rec.Release.Phase, rec.Release.Successor, rec.Release.Groups = record.HandingOver, "vllm-new", 4
	b := newFixture(t, lwstest.WithRecord(t, lwstest.InPhase(t, record.Promoting), *rec))
	before, _, _ := b.Look(lwstest.VLLM)
	if after, _, err := b.Look(lwstest.VLLM); err != nil || after == before {
		t.Errorf("kept %t, %v", after == before, err)
	}
}
