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
// somebody else chose it.
func TestNeverPromotesTheUnseen(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := threeBatches()
		m.pause = time.Duration(rapid.IntRange(0, 3).Draw(t, "pause")) * time.Second
		m.onFailure = rapid.SampledFrom([]OnFailure{"", OnFailureRollback, OnFailureWait}).Draw(t, "onFailure")
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
			m.asked = true
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
