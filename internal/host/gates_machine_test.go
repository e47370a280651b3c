// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"pgregory.net/rapid"

	"github.com/lockstep-rollouts/lockstep/internal/gate"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// gated is a machine at its first batch, with a gate of two measurements, 10 s after the batch is ready and 5 s later.
func gated() machine {
	m := threeBatches()
	m.requested, m.routed, m.revision, m.patience = true, true, "b", time.Minute
	m.Gates = []gate.Gate{{
		Name: "errors", Query: "up", Max: new(0.01), Count: 2,
		Interval: model.Duration(5 * time.Second), Delay: new(model.Duration(10 * time.Second)),
	}}
	return m
}

func measured(value float64) map[string]gate.Measurement {
	return map[string]gate.Measurement{"errors": {Value: &value}}
}

// TestNeverLeavesABatchWithoutItsGates feeds contexts and measurements in any order: a batch that gets requests is left, to the next or
// to the promotion, only after as many measurements in a row of contexts in which it was ready as the gate counts, of which too
// many did not fail.
func TestNeverLeavesABatchWithoutItsGates(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := gated()
		m.OnGateFailure = rapid.SampledFrom([]OnFailure{"", OnFailurePause}).Draw(t, "onGateFailure")
		passed, measuring := 0, false
		for i := range rapid.IntRange(1, 60).Draw(t, "contexts") {
			now := noon.Add(time.Duration(i) * 10 * time.Second)
			if value := rapid.SampledFrom([]*float64{nil, new(0.0), new(0.0), new(1.0)}).Draw(t, "value"); value != nil && measuring {
				m.record(measured(*value), now)
				if passed++; *value > 0 {
					passed = -1000
				}
			}
			c := routedAt(rapid.SampledFrom([]pb.State{pb.State_STATE_READY, pb.State_STATE_READY, pb.State_STATE_READY, pb.State_STATE_UPGRADING}).Draw(t, "state"),
				m.cursor, 25, rapid.SampledFrom([]string{"b", "b", "b", "b", "b", "b", "c"}).Draw(t, "revision"))
			c.TrafficWeight = m.weight(c)
			cursor, revision, ended := m.cursor, m.revision, m.intent != 0
			s := m.next(c, now)
			measuring = s.action == actMeasure
			onwards := s.action == actUpgrade && s.batch > cursor || s.action == actPromote && !ended || s.action == actPause
			if onwards && passed < 2 {
				t.Fatalf("left batch %d for %+v after %d measurements that passed", cursor, s, passed)
			}
			if m.revision != revision || c.GetState() != pb.State_STATE_READY || onwards {
				passed = 0
			}
			m.requested = true
			if s.action == actStop || m.intent != 0 {
				return
			}
		}
	})
}

// The pods of a set have other labels than those of a LeaderWorkerSet.
func TestGateSubjectHasTheKind(t *testing.T) {
	t.Parallel()
	got := gateSubject(&pb.BatchContext{Workload: &pb.WorkloadRef{Kind: "DisaggregatedSet", Namespace: "ml", Name: "llm"}})
	if want := (gate.Subject{Kind: "DisaggregatedSet", Namespace: "ml", Name: "llm"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
