// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/lockstep-rollouts/lockstep/internal/gate"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// TestNeverPromotesTheUnseen feeds the machine contexts in any order and checks what must hold whatever the driver says:
// the batch asked for exists, and a promotion is asked for only after the last batch was ready at this revision, or
// another client chose it.
func TestNeverPromotesTheUnseen(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := threeBatches()
		m.Pause = time.Duration(rapid.IntRange(0, 3).Draw(t, "pause")) * time.Second
		m.OnFailure = rapid.SampledFrom([]OnFailure{"", OnFailureRollback, OnFailureWait}).Draw(t, "onFailure")
		revision, earned := "", false
		for i := range rapid.IntRange(1, 30).Draw(t, "contexts") {
			c := anyContext(t)
			if r := c.GetUpdateRevision(); r != "" {
				earned = earned && (revision == "" || revision == r)
				revision = r
			}
			atLast := c.CurrentBatch == nil || c.GetCurrentBatch() >= m.lastBatch()
			earned = earned || c.GetState() == pb.State_STATE_PROMOTING || c.GetState() == pb.State_STATE_READY && atLast
			s := m.next(c, noon.Add(time.Duration(i)*time.Second))
			if s.batch < 0 || s.batch > m.lastBatch() {
				t.Fatalf("asked for batch %d of %d", s.batch, len(m.batches))
			}
			if s.action == actPromote && !earned {
				t.Fatalf("promotes revision %q, whose last batch was never ready", m.revision)
			}
			m.requested = true
		}
	})
}

func anyContext(t *rapid.T) *pb.BatchContext {
	c := &pb.BatchContext{
		State:          pb.State(rapid.IntRange(0, 12).Draw(t, "state")),
		UpdateRevision: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "revision"),
	}
	if batch := rapid.Int32Range(-1, 4).Draw(t, "batch"); batch >= 0 {
		c.CurrentBatch = proto.Int32(batch)
	}
	return c
}

// TestNeverGoesOnWithoutItsWeight feeds a machine that routes with contexts in any order: whatever the driver says, a weight
// is asked for only when the groups are ready and no end was chosen, it is the batch's own, and a batch is left behind, on
// to the next or to the promotion, only after its weight was in the routes at this revision.
func TestNeverGoesOnWithoutItsWeight(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := threeBatches()
		m.routed = true
		m.Pause = time.Duration(rapid.IntRange(0, 3).Draw(t, "pause")) * time.Second
		if rapid.Bool().Draw(t, "given") {
			m.Weights = rapid.SliceOfN(rapid.Int32Range(0, 100), 3, 3).Draw(t, "weights")
		}
		for i := range rapid.IntRange(1, 40).Draw(t, "contexts") {
			c := anyRoutedContext(t, m.Weights)
			cursor, revision, asked, ended := m.cursor, m.revision, m.requested, m.intent != 0
			s := m.next(c, noon.Add(time.Duration(i)*time.Second))
			others := c.GetState() == pb.State_STATE_PROMOTING || c.GetCurrentBatch() > cursor
			anew := revision != "" && m.revision != revision
			onwards := s.action == actUpgrade && s.batch > cursor || s.action == actPromote && !ended || s.action == actPause
			if onwards && !others && (anew || !asked || !m.inForce(cursor, c)) {
				t.Fatalf("left batch %d for %+v at %d%% %s", cursor, s, c.GetTrafficWeight(), c.GetTrafficBasis())
			}
			if s.action == actWeight {
				if c.GetState() != pb.State_STATE_READY || m.intent != 0 || s.batch != m.cursor || s.weight < 0 || s.weight > 100 {
					t.Fatalf("asked for %d%% of batch %d in %s", s.weight, s.batch, c.GetState())
				}
				if m.inForce(s.batch, c) {
					t.Fatalf("asked for %d%%, which is in force", s.weight)
				}
			}
			m.requested = m.requested || s.action != actWeight
		}
	})
}

// inForce is weighed for any batch, whether or not it is at the cursor.
func (m *machine) inForce(batch int32, c *pb.BatchContext) bool {
	other := *m
	other.cursor = batch
	return c.GetTrafficBasis() == pb.TrafficBasis_TRAFFIC_BASIS_ROUTED && c.GetTrafficWeight() == other.weight(c)
}

// anyRoutedContext has weights that batches want, often enough.
func anyRoutedContext(t *rapid.T, weights []int32) *pb.BatchContext {
	c := anyContext(t)
	c.Replicas, c.Planned = 4, rapid.SampledFrom([]int32{0, 1, 2, 4}).Draw(t, "planned")
	c.TrafficBasis = rapid.SampledFrom([]pb.TrafficBasis{
		pb.TrafficBasis_TRAFFIC_BASIS_ROUTED, pb.TrafficBasis_TRAFFIC_BASIS_ROUTED, pb.TrafficBasis_TRAFFIC_BASIS_GROUP_COUNTS,
	}).Draw(t, "basis")
	c.TrafficWeight = rapid.SampledFrom(append([]int32{0, 25, 50, 100}, weights...)).Draw(t, "weight")
	return c
}

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
