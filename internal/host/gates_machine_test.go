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

func TestGates(t *testing.T) {
	t.Parallel()
	// seen is a context after so many seconds, with a measurement if value is not nil.
	type seen struct {
		after   int
		state   pb.State
		weight  int32
		value   *float64
		want    action
		outcome Outcome
	}
	const ready, upgrading = pb.State_STATE_READY, pb.State_STATE_UPGRADING
	good, bad := new(0.0), new(0.5)
	cases := map[string]struct {
		reason string
		change func(m *machine)
		seen   []seen
	}{
		"Pass": {"the next batch follows the last measurement", nil, []seen{
			{0, ready, 25, nil, actMeasure, ""}, {10, ready, 25, good, actMeasure, ""}, {15, ready, 25, good, actUpgrade, ""},
		}},
		"WeightFirst": {"measured are requests, so the weight comes first", nil, []seen{
			{0, ready, 0, nil, actWeight, ""}, {1, ready, 25, nil, actMeasure, ""},
		}},
		"PauseRuns": {"the pause lasts while the gates are measured", func(m *machine) { m.Pause = 12 * time.Second }, []seen{
			{0, ready, 25, nil, actMeasure, ""}, {10, ready, 25, good, actMeasure, ""}, {15, ready, 25, good, actUpgrade, ""},
		}},
		"LongPause": {"and longer", func(m *machine) { m.Pause = time.Minute }, []seen{
			{0, ready, 25, nil, actMeasure, ""}, {10, ready, 25, good, actMeasure, ""}, {15, ready, 25, good, actPause, ""}, {60, ready, 25, nil, actUpgrade, ""},
		}},
		"Fail": {"a failed gate rolls back", nil, []seen{
			{0, ready, 25, nil, actMeasure, ""}, {10, ready, 25, bad, actRollback, ""}, {11, pb.State_STATE_ROLLING_BACK, 0, nil, actRollback, ""},
		}},
		"FailPause": {"or stops", func(m *machine) { m.OnGateFailure = OnFailurePause }, []seen{
			{0, ready, 25, nil, actMeasure, ""}, {10, ready, 25, bad, actStop, OutcomeGateFailed},
		}},
		"Unready": {"a batch that becomes unready is measured anew", nil, []seen{
			{0, ready, 25, nil, actMeasure, ""}, {10, ready, 25, good, actMeasure, ""}, {12, upgrading, 25, nil, actUpgrade, ""},
			{15, ready, 25, nil, actMeasure, ""}, {25, ready, 25, good, actMeasure, ""}, {30, ready, 25, good, actUpgrade, ""},
		}},
		"NoRequests": {"a batch without requests is not measured", func(m *machine) { m.Weights = []int32{0, 50, 100} }, []seen{
			{0, ready, 0, nil, actUpgrade, ""},
		}},
		"NothingUnmeasured": {"but the last one is: nothing is promoted unmeasured", func(m *machine) { m.Weights, m.cursor = []int32{0, 0, 0}, 2 }, []seen{
			{0, ready, 0, nil, actMeasure, ""}, {10, ready, 0, good, actMeasure, ""}, {15, ready, 0, good, actPromote, ""},
		}},
		"LastBatch": {"the gates are measured before the promotion", func(m *machine) { m.batches = m.batches[:1] }, []seen{
			{0, ready, 25, nil, actMeasure, ""}, {10, ready, 25, good, actMeasure, ""}, {15, ready, 25, good, actPromote, ""},
		}},
		"NoPromote": {"and before the host stops", func(m *machine) { m.batches, m.NoPromote = m.batches[:1], true }, []seen{
			{0, ready, 25, nil, actMeasure, ""}, {10, ready, 25, bad, actRollback, ""},
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := gated()
			if tc.change != nil {
				tc.change(&m)
			}
			for i, c := range tc.seen {
				now := noon.Add(time.Duration(c.after) * time.Second)
				if c.value != nil {
					m.record(measured(*c.value), now)
				}
				got := m.next(routedAt(c.state, m.cursor, c.weight, "b"), now)
				if got.action != c.want || got.outcome != c.outcome {
					t.Fatalf("%s: context %d: action %d %s, want %d %s", tc.reason, i, got.action, got.outcome, c.want, c.outcome)
				}
			}
		})
	}
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
