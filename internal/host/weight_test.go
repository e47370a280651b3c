// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/hosttest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func TestABatchIsReadyWhenItsWeightIsInForce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	slow := func(_ int32, c *pb.BatchContext) error {
		// The gateway takes a moment.
		c.State, c.Reason, c.Message = pb.State_STATE_VERIFYING, "RouteNotObserved", "the gateway has not taken the route yet"
		return nil
	}
	r.fake.OnSetWeight = slow
	ctx, done := deadline(t), make(chan error, 1)
	go func() {
		_, err := r.host.Release(ctx, release(func(r *host.Release) { routes(r); r.Policy.Batches = []string{"25%", "100%"} }))
		done <- err
	}()
	for range 2 {
		r.eventually(t, "it is VERIFYING", func(e host.Event) bool { return e.Context.GetState() == pb.State_STATE_VERIFYING })
		require.NoError(t, r.fake.Await(ctx, func(c *pb.BatchContext, _ []string) bool {
			return c.GetState() == pb.State_STATE_VERIFYING
		}))
		weights := strings.Count(strings.Join(r.fake.Calls(), " "), "SetWeight")
		ready := 0
		for _, kind := range r.kinds() {
			if kind == host.EventBatchReady {
				ready++
			}
		}
		assert.Equal(t, weights-1, ready, "%d batches were announced as ready, with %d weights in force", ready, weights-1)
		r.fake.Set(func(c *pb.BatchContext) { c.State = pb.State_STATE_READY })
	}
	require.NoError(t, <-done)
	want := []host.EventKind{
		host.EventStarted, host.EventBatchStarted, host.EventWeight, host.EventBatchReady,
		host.EventBatchStarted, host.EventWeight, host.EventBatchReady, host.EventPromoting, host.EventFinished,
	}
	assert.Empty(t, cmp.Diff(want, r.kinds()), "events: -want, +got")
}

// losing does what SetWeight asks for and loses its first answers.
type losing struct {
	*hosttest.Driver

	left int
}

func (d *losing) SetWeight(ctx context.Context, req *pb.SetWeightRequest) (*pb.SetWeightResponse, error) {
	resp, err := d.Driver.SetWeight(ctx, req)
	if d.left--; d.left >= 0 && err == nil {
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE, "the connection broke")
	}
	return resp, err
}

func TestReleaseRefusesWeights(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason  string
		release func(*host.Release)
		fake    func(*hosttest.Driver)
		want    string
	}{
		"NoCapability": {
			reason: "a driver that splits no requests is found out before the release begins", release: routes,
			fake: func(d *hosttest.Driver) { d.NoTraffic = true }, want: "does not list CAPABILITY_TRAFFIC_WEIGHT",
		},
		"InPlace": {
			reason: "no stable group is left to share with", want: "its weight is 100",
			release: func(r *host.Release) {
				routes(r)
				r.Policy.Style, r.Weights = pb.Style_STYLE_PARTITION, []int32{10, 50, 90}
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRigOf(t, tc.fake)
			_, err := r.host.Release(deadline(t), release(tc.release))
			assert.ErrorContains(t, err, tc.want, "%s: Release(...) = %v, want an error with %q", tc.reason, err, tc.want)
			calls := r.fake.Calls()
			assert.Empty(t, calls, "%s: calls = %v, want none", tc.reason, calls)
		})
	}
}
