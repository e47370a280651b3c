// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package node

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/load"
	"github.com/lockstep-rollouts/lockstep/test/serving"
	"github.com/lockstep-rollouts/lockstep/test/suite"
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

// course is a release under constant load.
type course struct {
	*serving.Release
	requests *load.Generator

	// stable and update are the sides of the requests: revisions.
	stable, update string
	// tolerance is that of shares.
	tolerance float64
	// capacity is the least number of ready groups in each phase that begins. 0 if the test takes groups away.
	capacity int
	// services are the user's Services that the release does not name.
	services []string
}

// enough requests are sent in each phase with a share.
const enough = 200

// tolerance is the maximum deviation of a share in percentage points. The gateway starts its round with the stable side anew whenever its
// configuration changes, which tests beside this one cause many times a second. test/traffic checks exact shares.
const tolerance = 8

// begin begins a release of a workload that receives requests.
func begin(t *testing.T, policy *pb.ReleasePolicy, changes ...func(*lws.LeaderWorkerSet)) *course {
	t.Helper()
	return beginOf(serve(t), policy, changes...)
}

func beginOf(s *serving.Release, policy *pb.ReleasePolicy, changes ...func(*lws.LeaderWorkerSet)) *course {
	s.T.Helper()
	c := &course{Release: s, tolerance: tolerance, capacity: groups}
	if policy.GetStyle() == pb.Style_STYLE_PARTITION {
		c.capacity = groups - maxUnavailable
	}
	c.requests = stream(c.Release)
	c.phase("stable alone", 0)
	c.Await(c.requests, enough/2)
	c.BeginBy(policy, changes...)
	now := c.now(c.T.Context())
	c.stable, c.update = now.GetStableRevision(), now.GetUpdateRevision()
	return c
}

// now returns where the release is.
func (c *course) now(ctx context.Context) *pb.BatchContext {
	c.T.Helper()
	r, err := c.CalculateBatchContext(ctx, &pb.CalculateBatchContextRequest{Workload: c.Ref})
	require.NoError(c.T, err)
	return r.GetContext()
}

// request requests a batch, and does not wait for it.
func (c *course) request(batch int32) {
	c.T.Helper()
	_, err := c.UpgradeBatch(c.T.Context(), &pb.UpgradeBatchRequest{
		Workload: c.Ref, ReleaseId: "r1", Target: &pb.UpgradeBatchRequest_Batch{Batch: batch},
	})
	require.NoError(c.T, err)
}

// rollsBack ends the release, and returns when the stable revision serves alone.
func (c *course) rollsBack() {
	c.T.Helper()
	c.phase("rolling back", 0)
	c.End(rollback)
	c.stable, c.update = c.update, c.stable
	c.ends("rolled back")
}

// phase starts a phase in which the share is not checked if it is 0.
func (c *course) phase(name string, weight int32) {
	phase := load.Phase{Name: name, Tolerance: c.tolerance, MinReady: c.capacity}
	if weight > 0 {
		phase.Want = load.Shares{c.update: float64(weight)}
		if weight < 100 {
			phase.Want[c.stable] = float64(100 - weight)
		}
	}
	c.requests.Begin(phase)
}

func (c *course) batch(batch int32) {
	c.T.Helper()
	c.phase(fmt.Sprintf("batch %d", batch+1), 0)
	c.Upgrade(batch)
}

// weigh requests a share. The requests have it from the moment at which the driver says so.
func (c *course) weigh(weight int32) {
	c.T.Helper()
	c.phase(fmt.Sprintf("to %d %%", weight), 0)
	c.Weight(weight)
	if weight == 0 {
		c.requests.Begin(load.Phase{Name: "0 %", Want: load.Shares{c.stable: 100}, MinReady: c.capacity})
	} else {
		c.phase(fmt.Sprintf("%d %%", weight), weight)
	}
	c.Await(c.requests, enough)
}

// promoted promotes the release under its requests, and ends the course.
func (c *course) promoted() {
	c.T.Helper()
	c.phase("promotion", 0)
	c.End(promote)
	c.ends("promoted")
}

// ends ends a release after which the update revision serves alone.
func (c *course) ends(name string) {
	c.T.Helper()
	c.phase(name, 100)
	c.Await(c.requests, enough)
	c.Passes(c.requests)
	c.MustBeRestoredExcept(c.services...)
}

// promotes requests the promotion, and returns when LWS has replaced this many groups of the workload. The last one may still start.
func (c *course) promotes(groups int) {
	c.T.Helper()
	c.capacity = groups - maxUnavailable // if it is rolled back
	c.phase("promotion begins", 0)
	_, err := c.Finalize(c.T.Context(), &pb.FinalizeRequest{Workload: c.Ref, ReleaseId: "r1", Intent: promote})
	require.NoError(c.T, err)
	sets := c.Sets()
	await.Nil(c.T, "groups are promoted", func(ctx context.Context) error {
		w := suite.Get(ctx, c.T, sets, c.Name)
		if w.Status.UpdatedReplicas < int32(groups) {
			return fmt.Errorf("%d groups of %s are updated: want %d", w.Status.UpdatedReplicas, c.Name, groups)
		}
		return nil
	})
}
