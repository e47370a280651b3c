// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

var vllmRef = &pb.WorkloadRef{Namespace: "default", Name: "vllm"}

// routerCalls are the RPCs of TrafficRouter, each asking for something sensible, of a template's release if a revision is given.
func routerCalls(d *Driver, id, revision string) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"SetWeight": func(ctx context.Context) error {
			_, err := d.SetWeight(ctx, &pb.SetWeightRequest{Workload: vllmRef, ReleaseId: id, UpdateRevision: revision, Weight: 50})
			return err
		},
		"SetHeaderRoute": func(ctx context.Context) error {
			_, err := d.SetHeaderRoute(ctx, &pb.SetHeaderRouteRequest{
				Workload: vllmRef, ReleaseId: id, UpdateRevision: revision, Name: "testers",
				Matches: []*pb.HeaderMatch{{Name: "X-Canary", Value: &pb.HeaderMatch_Exact{Exact: "yes"}}},
			})
			return err
		},
		"SetMirror": func(ctx context.Context) error {
			_, err := d.SetMirror(ctx, &pb.SetMirrorRequest{Workload: vllmRef, ReleaseId: id, UpdateRevision: revision, Percentage: 20})
			return err
		},
		"VerifyWeight": func(ctx context.Context) error {
			_, err := d.VerifyWeight(ctx, &pb.VerifyWeightRequest{Workload: vllmRef, ReleaseId: id, Weight: 50})
			return err
		},
		"Reset": func(ctx context.Context) error {
			_, err := d.Reset(ctx, &pb.ResetRequest{Workload: vllmRef, ReleaseId: id})
			return err
		},
	}
}

// Each RPC refuses alike what it can't serve, and writes nothing then.
func TestRouterRefuses(t *testing.T) {
	for _, tc := range []struct {
		name, id, revision string
		workload           *lws.LeaderWorkerSet
		want               pb.ErrorReason
		but                []string // RPCs that have nothing against it
	}{
		{"no traffic policy", "r1", "", lwstest.InPhase(t, record.Progressing), pb.ErrorReason_ERROR_REASON_UNSUPPORTED, nil},
		{"another release", "r2", "", lwstest.RoutedPhase(t, record.Progressing, nil), pb.ErrorReason_ERROR_REASON_RELEASE_NOT_FOUND, nil},
		{"no release", "r1", "", lwstest.Unrecorded(), pb.ErrorReason_ERROR_REASON_RELEASE_NOT_FOUND, nil},
		{"no id", "", "", lwstest.RoutedPhase(t, record.Progressing, nil), pb.ErrorReason_ERROR_REASON_INVALID_REQUEST, nil},
		{"another revision", "r1", "old", lwstest.RoutedPhase(t, record.Progressing, nil), pb.ErrorReason_ERROR_REASON_REVISION_CHANGED, []string{"VerifyWeight", "Reset"}},
		// A host that cleans up, or that looks, is answered at any time.
		{"rolled back", "r1", "", lwstest.RoutedPhase(t, record.CleaningUp, nil), pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED, []string{"VerifyWeight", "Reset"}},
		{"promoted", "r1", "", lwstest.RoutedPhase(t, record.Promoted, nil), pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED, []string{"VerifyWeight", "Reset"}},
	} {
		b := newFixture(t, tc.workload)
		b.run()
		b.eventually("the driver serves", b.Synced)
		for call, do := range routerCalls(b.Driver, tc.id, tc.revision) {
			want := tc.want
			for _, name := range tc.but {
				if name == call {
					want = pb.ErrorReason_ERROR_REASON_UNSPECIFIED
				}
			}
			before := len(b.Writes())
			err := do(t.Context())
			assert.True(t, drivererr.Reason(err) == want && (err == nil) == (want == 0), "%s: %s: %v, want %v", tc.name, call, err, want)
			assert.Empty(t, b.Writes()[before:], "%s: %s wrote", tc.name, call)
		}
	}
}

// A requested weight is recorded once; the same request again changes nothing.
func TestRouterRecordsRequestedState(t *testing.T) {
	b := newRoutedFixture(t, lwstest.RoutedPhase(t, record.Progressing, nil), 0).synced()
	both := func(call string) {
		t.Helper()
		before := len(b.Writes())
		for _, want := range []int{1, 1} {
			require.NoError(t, routerCalls(b.Driver, "r1", "")[call](t.Context()), call)
			b.caughtUp()
			assert.Len(t, b.Writes()[before:], want, "%s: wrote", call)
		}
	}
	both("SetWeight")
	both("SetHeaderRoute")
	both("SetMirror")
	w := b.requested()
	assert.True(t, w != nil && w.Weight == 50 && w.Mirror == 20 && len(w.HeaderRoutes) == 1 && w.HeaderRoutes[0].Name == "testers", "recorded %+v", w)
	both("Reset")
	w = b.requested()
	assert.Nil(t, w, "after Reset %+v is recorded", w)
	_, err := b.SetHeaderRoute(t.Context(), &pb.SetHeaderRouteRequest{Workload: vllmRef, ReleaseId: "r1", Name: "testers"})
	assert.NoError(t, err, "remove a header route that is not there")
}

// A policy may be attached to a rule that has a name, so that rule gets no header route, and nothing is recorded. A weight is set.
func TestSetHeaderRouteRefusesNamedRules(t *testing.T) {
	b := newNamedRuleFixture(t)
	calls := routerCalls(b.Driver, "r1", "")
	err := calls["SetHeaderRoute"](t.Context())
	lwstest.ErrorContains(t, err, `HTTPRoute llm: rule "chat"`)
	if got := drivererr.Reason(err); got != pb.ErrorReason_ERROR_REASON_REFERENCE_UNUSABLE || b.requested() != nil {
		t.Errorf("reason %s, recorded %+v", got, b.requested())
	}
	assert.NoError(t, calls["SetWeight"](t.Context()), "a weight")
}

// A header route that a route has room for only without the recorded ones is refused, and nothing is recorded.
func TestSetHeaderRouteRefusesTooManyRules(t *testing.T) {
	b := newRulesFixture(t, func(rules []any) []any { return slices.Repeat(rules[:1], 6) })
	set := func(name string) error {
		_, err := b.SetHeaderRoute(t.Context(), &pb.SetHeaderRouteRequest{
			Workload: vllmRef, ReleaseId: "r1", Name: name,
			Matches: []*pb.HeaderMatch{{Name: "x-canary", Value: &pb.HeaderMatch_Exact{Exact: name}}},
		})
		b.caughtUp()
		return err
	}
	require.NoError(t, set("alpha"))
	err := set("beta")
	lwstest.ErrorContains(t, err, "HTTPRoute llm would have 18 rules")
	if got := drivererr.Reason(err); got != pb.ErrorReason_ERROR_REASON_REFERENCE_UNUSABLE || len(b.requested().HeaderRoutes) != 1 {
		t.Errorf("reason %s, recorded %+v", got, b.requested())
	}
}

// newNamedRuleFixture runs a driver of a release whose route has a rule with the name chat.
func newNamedRuleFixture(t *testing.T) *routedFixture {
	t.Helper()
	return newRulesFixture(t, func(rules []any) []any {
		rules[0].(map[string]any)["name"] = "chat" //nolint:forcetypeassert // an object
		return rules
	})
}

// newRulesFixture runs a driver of a release whose route has other rules.
func newRulesFixture(t *testing.T, edit func([]any) []any) *routedFixture {
	t.Helper()
	b := newRoutedFixture(t, lwstest.RoutedPhase(t, record.Progressing, nil), 0)
	routes := b.routes.Resource(lwstest.GatewayAPI.WithResource("httproutes")).Namespace("default")
	route, err := routes.Get(t.Context(), "llm", metav1.GetOptions{})
	require.NoError(t, err)
	rules, _, _ := unstructured.NestedSlice(route.Object, "spec", "rules")
	require.NoError(t, unstructured.SetNestedSlice(route.Object, edit(rules), "spec", "rules"))
	_, err = routes.Update(t.Context(), route, metav1.UpdateOptions{})
	require.NoError(t, err)
	return b.synced()
}

// What VerifyWeight says about the weight in force, about others, and at the end.
func TestVerifyWeight(t *testing.T) {
	for _, tc := range []struct {
		name     string
		phase    record.Phase
		weight   int // in the route
		ask      int32
		verified bool
		reason   string
	}{
		{"in force", record.Promoting, 30, 30, true, ""},
		{"another", record.Promoting, 30, 50, false, "OtherWeight"},
		{"none", record.Promoting, 30, 0, false, "OtherWeight"},
		{"not there yet", record.Promoting, 10, 30, false, traffic.ReasonWriting},
		{"on its way back", record.CleaningUp, 30, 30, false, traffic.ReasonWriting},
		{"back", record.CleaningUp, 0, 0, true, ""},
		{"back, asked for the old one", record.CleaningUp, 0, 30, false, "ReleaseFinalized"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			// The loop would make it true.
			b := newRoutedFixtureWith(t, Options{ReadOnly: true}, lwstest.RoutedPhase(t, tc.phase, &record.Traffic{Weight: 30}), tc.weight).synced()
			v, err := b.VerifyWeight(t.Context(), &pb.VerifyWeightRequest{Workload: vllmRef, ReleaseId: "r1", Weight: tc.ask})
			assert.True(t, err == nil && v.GetVerified() == tc.verified && v.GetReason() == tc.reason && v.GetWeight() == int32(tc.weight),
				"%v, %v; want %t %q", v, err, tc.verified, tc.reason)
			assert.Equal(t, tc.verified, v.GetMessage() == "", "message %q", v.GetMessage())
		})
	}
}

// While a host waits for its weight, the release ends and another one begins that routes nothing: the wait ends with the
// reason, and no missing route is looked for.
func TestWaitOutlivesRelease(t *testing.T) {
	stable := lwstest.RoutedPhase(t, record.Progressing, nil)
	b := newRoutedFixture(t, stable, 0).synced()
	answer := make(chan error, 1)
	go func() {
		_, err := b.SetWeight(context.Background(), &pb.SetWeightRequest{
			Workload: vllmRef, ReleaseId: "r1", Weight: 30, Wait: durationpb.New(time.Minute),
		})
		answer <- err
	}()
	b.eventually("the request is recorded", func() bool { return b.requested() != nil })
	next := lwstest.InPhase(t, record.Progressing)
	_, err := b.Sets.LeaderworkersetV1().LeaderWorkerSets("default").Update(t.Context(), next, metav1.UpdateOptions{})
	require.NoError(t, err)
	select {
	case err := <-answer:
		assert.Equal(t, pb.ErrorReason_ERROR_REASON_UNSUPPORTED, drivererr.Reason(err), err)
	case <-time.After(await.Patience):
		t.Fatal("the wait did not end")
	}
}

// A call that depends on whether the last release is over waits for the caches to tell.
func TestNextReleaseWaitsForCaches(t *testing.T) {
	b := newRoutedFixture(t, lwstest.RoutedPhase(t, record.CleaningUp, nil), 0)
	s, decision, err := b.engine.Look(lwstest.VLLM)
	require.True(t, err == nil && decision.Reason == traffic.ReasonNotSynced, "%+v, %v", decision, err)
	state := describeWorkload(s, decision)
	assert.False(t, state.GetTrafficBasis() != 0 && state.GetTrafficWeight() != 0, "a share is reported that is not known: %v", state)
	b.run()
	b.eventually("the driver serves", b.Synced)
	b.awaitRead(t.Context(), lwstest.VLLM)
	assert.False(t, plan.Unread(b.look().Observation), "it did not wait")
}
