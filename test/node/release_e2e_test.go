// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package node

import (
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/load"
	"github.com/lockstep-rollouts/lockstep/test/serving"
)

const (
	promote  = pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE
	rollback = pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK
)

// A canary: 10, 50 and 100 % of the requests, then the promotion. No stream is cut.
//
// Proves (test): Real containers under streaming requests: canary, partition, abort of a promotion.
func TestCanary(t *testing.T) {
	t.Parallel()
	c := begin(t, canary())
	for batch, weight := range []int32{10, 50, 100} {
		c.batch(int32(batch))
		c.weigh(weight)
	}
	c.promoted()
}

// Requests switch to a complete second set, back, and to it again; the promotion replaces the first set.
//
// Proves: Real containers: blue-green, handover, an abort in each phase.
func TestBlueGreen(t *testing.T) {
	t.Parallel()
	c := begin(t, blueGreen())
	c.batch(0)
	for _, weight := range []int32{100, 0, 100} {
		c.weigh(weight)
	}
	c.promoted()
}

// The second set becomes the workload.
//
// Proves: Real containers: blue-green, handover, an abort in each phase.
func TestHandover(t *testing.T) {
	t.Parallel()
	policy := blueGreen()
	policy.BlueGreen = &pb.BlueGreenPolicy{
		Promotion: pb.BluePromotion_BLUE_PROMOTION_ADOPT, ScaleDownDelay: durationpb.New(serving.Longest),
	}
	c := begin(t, policy)
	c.batch(0)
	c.phase("promotion", 0)
	c.End(promote)
	c.requests.Begin(load.Phase{Name: "adopted", Want: load.Shares{c.update: 100}, MinReady: c.capacity})
	c.Await(c.requests, enough)
	c.Passes(c.requests)
}

// Groups are replaced in place, and requests follow the weight while both revisions exist.
//
// Proves (test): Real containers under streaming requests: canary, partition, abort of a promotion.
func TestPartition(t *testing.T) {
	t.Parallel()
	c := begin(t, partition())
	c.batch(0)
	c.weigh(10)
	c.batch(1)
	c.weigh(50)
	c.phase("last batch", 0)
	c.Upgrade(2)
	c.promoted()
}

// An abort in each phase of a release restores the stable revision, and cuts no stream.
//
// Proves (test, canary-in-promotion): Real containers under streaming requests: canary, partition, abort of a promotion.
// Proves: Real containers: blue-green, handover, an abort in each phase.
func TestAbort(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		policy *pb.ReleasePolicy
		until  func(*course)
	}{
		{"prepared", canary(), func(*course) {}},
		{"batch-requested", canary(), func(c *course) { c.request(1) }},
		{"canary-50", canary(), func(c *course) {
			c.batch(1)
			c.weigh(50)
		}},
		{"canary-in-promotion", canary(), func(c *course) {
			c.batch(2)
			c.weigh(100)
			c.promotes(1)
		}},
		{"blue-green-switched", blueGreen(), func(c *course) {
			c.batch(0)
			c.weigh(100)
		}},
		{"partition-50", partition(), func(c *course) {
			c.batch(1)
			c.weigh(50)
		}},
		{"partition-updated", partition(), func(c *course) {
			c.batch(2)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := begin(t, test.policy)
			test.until(c)
			c.rollsBack()
		})
	}
}

func canary() *pb.ReleasePolicy {
	return &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"25%", "50%", "100%"}, Traffic: serving.ByRoute()}
}

func blueGreen() *pb.ReleasePolicy {
	return &pb.ReleasePolicy{Style: pb.Style_STYLE_BLUE_GREEN, Batches: []string{"100%"}, Traffic: serving.ByRoute()}
}

func partition() *pb.ReleasePolicy {
	return &pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: []string{"25%", "50%", "100%"}, Traffic: serving.ByRoute()}
}
