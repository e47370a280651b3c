// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

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
