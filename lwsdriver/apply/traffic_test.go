// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/fakes"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

var (
	routes   = lwstest.GatewayAPI.WithResource("httproutes")
	services = corev1.SchemeGroupVersion.WithResource("services")
)

// newRoutedFixture runs a fixture with a release that gives the canary a weight. The observer does not see what the dynamic client writes to Services.
func newRoutedFixture(t *testing.T, weight int) (*fixture, *dynamicfake.FakeDynamicClient) {
	t.Helper()
	stable := lwstest.RoutedPhase(t, record.Progressing, nil)
	core, generic, canary := lwstest.RoutedRelease(t, stable, weight)
	b := newFixtureOn(t, core, generic, stable, canary)
	b.runSynced()
	b.eventually("the routes are read", func() bool { return b.look().Traffic.Unread == nil })
	return b, generic
}

// withoutService removes the canary's Service from what the observer sees.
func (b *fixture) withoutService() {
	b.t.Helper()
	require.NoError(b.t, b.Core.Tracker().Delete(services, "default", "vllm-canary"))
	b.eventually("the canary's Service is not seen", func() bool { return b.look().Traffic.World.Canary == nil })
}

// TestWriteRoute waits until the cache shows the route as written, also once the workload is gone.
func TestWriteRoute(t *testing.T) {
	for _, gone := range []bool{false, true} {
		b, _ := newRoutedFixture(t, 50)
		s := b.look()
		if gone {
			require.NoError(t, b.Sets.Tracker().Delete(lws.GroupVersion.WithResource("leaderworkersets"), "default", s.StableObject.Name))
			b.eventually("the deletion is seen", func() bool { return b.observer.Workload(lwstest.VLLM) == nil })
			s = b.observer.ObserveGone(lwstest.VLLM)
		}
		start := time.Now()
		wrote, err := b.Apply(t.Context(), s, plan.SetTraffic{Desired: traffic.Desired{Isolated: true, Prepared: true}})
		require.True(t, wrote && err == nil, "gone: %t: wrote %t, %v", gone, wrote, err)
		assert.Less(t, time.Since(start), catchUpTimeout/2, "no change of the route has woken it")
	}
}

// TestRouteBehind: the cache of a kind that does not show a write is stale until it does.
func TestRouteBehind(t *testing.T) {
	b, generic := newRoutedFixture(t, 0)
	s := b.look()
	for _, route := range s.Traffic.World.Routes {
		route.SetResourceVersion("7")
	}
	newer := lwstest.Route(t, *s.Setup, 50)
	newer.SetResourceVersion("99")
	fakes.React(&generic.Fake, "patch", routes.Resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, newer, nil })
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, observe.ErrBehind)
	defer cancel()
	_, err := b.Apply(ctx, s, plan.SetTraffic{Desired: traffic.Desired{Isolated: true, Prepared: true, Weight: 50}})
	assert.Equal(t, pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE, drivererr.Reason(observe.ContractError(err)), err)
	s = b.look()
	assert.True(t, len(s.Stale) == 1 && strings.HasPrefix(s.Stale[0].Resource, routes.Resource), "stale: %+v", s.Stale)
	require.NoError(t, generic.Tracker().Update(routes, newer, "default"))
	b.eventually("the cache has caught up", func() bool { return len(b.look().Stale) == 0 })
}

// TestRouteWriteErrors: the API server's errors and what Apply returns for them.
func TestRouteWriteErrors(t *testing.T) {
	resource := schema.GroupResource{Resource: services.Resource}
	prepared := traffic.Desired{Isolated: true, Prepared: true}
	succeeds := func(err error) bool { return err == nil }
	for _, tt := range []struct {
		name, reason string
		desired      traffic.Desired
		verb         string
		err          error
		before       func(*fixture)
		during       func(*fixture)
		want         func(error) bool
	}{
		{name: "deleted before the delete", reason: "as desired", desired: traffic.Desired{Isolated: true}, verb: "delete", err: apierrors.NewNotFound(resource, "x"),
			// The cache is about to show the other client's write.
			during: func(b *fixture) { assert.NoError(b.t, b.Core.Tracker().Delete(services, "default", "vllm-canary")) }, want: succeeds},
		{name: "changed before the delete", reason: "lost a race", desired: traffic.Desired{Isolated: true}, verb: "delete",
			err: apierrors.NewConflict(resource, "x", errors.New("changed")), want: apierrors.IsConflict},
		{name: "exists, and is cached", reason: "another driver made it", desired: prepared, verb: "create", err: apierrors.NewAlreadyExists(resource, "x"),
			before: (*fixture).withoutService, during: func(b *fixture) {
				s := b.look()
				canary, err := traffic.CanaryService(s.Traffic.World.Stable, *s.Setup)
				require.NoError(b.t, err)
				require.NoError(b.t, b.Core.Tracker().Add(canary))
			}, want: succeeds},
		{name: "deleted before the patch", reason: "lost a race", verb: "patch", err: apierrors.NewNotFound(resource, "x"), want: apierrors.IsNotFound},
		{name: "old API", reason: "the remedy is named", verb: "patch", err: apierrors.NewBadRequest(`strict decoding error: unknown field "spec.rules[0].name"`),
			want: func(err error) bool { return apierrors.IsBadRequest(err) && strings.Contains(err.Error(), "too old") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, generic := newRoutedFixture(t, 0)
			if tt.before != nil {
				tt.before(b)
			}
			if tt.verb == "patch" {
				tt.desired = traffic.Desired{Isolated: true, Prepared: true, Weight: 50}
			}
			s := b.look()
			fakes.React(&generic.Fake, tt.verb, "*", func(clienttesting.Action) (bool, runtime.Object, error) {
				if tt.during != nil {
					tt.during(b)
				}
				return true, nil, tt.err
			})
			wrote, err := b.Apply(t.Context(), s, plan.SetTraffic{Desired: tt.desired})
			assert.True(t, !wrote && tt.want(err), "%s: wrote %t, %v", tt.reason, wrote, err)
			if tt.want(nil) {
				next := b.look().Traffic.Look(tt.desired).Write
				assert.False(t, next != nil && string(next.Verb) == tt.verb, "the next observation would decide %s again", next)
			}
		})
	}
}
