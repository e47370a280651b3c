// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package traffic

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/load"
	"github.com/lockstep-rollouts/lockstep/test/podserver"
	"github.com/lockstep-rollouts/lockstep/test/serving"
	"github.com/lockstep-rollouts/lockstep/test/suite"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

var services = schema.GroupVersionResource{Version: "v1", Resource: "services"}

// enforce applies a manifest as a GitOps tool that forces ownership of every field, and waits until the driver has repaired the object.
func enforce(s *serving.Release, resource schema.GroupVersionResource, name, manifest string) {
	s.T.Helper()
	objects := s.Objects(resource)
	applied, err := objects.Patch(s.T.Context(), name, types.ApplyYAMLPatchType, []byte(manifest),
		metav1.PatchOptions{FieldManager: "argocd-controller", Force: ptr.To(true)})
	require.NoError(s.T, err)
	s.Eventually(name+" is repaired", func(ctx context.Context) error {
		now, err := objects.Get(ctx, name, metav1.GetOptions{})
		if err == nil && cmp.Equal(now.Object["spec"], applied.Object["spec"]) {
			err = errors.New("its spec is as it was applied")
		}
		return err
	})
}

// verified waits until the driver reports a share as verified again.
func verified(s *serving.Release, weight int32) {
	s.T.Helper()
	s.Eventually(fmt.Sprintf("%d %% are verified", weight), func(ctx context.Context) error {
		v, err := s.VerifyWeight(ctx, &pb.VerifyWeightRequest{Workload: s.Ref, ReleaseId: "r1", Weight: weight})
		if err == nil && !v.GetVerified() {
			err = errors.New(v.GetReason() + ": " + v.GetMessage())
		}
		return err
	})
}

// The user's manifests are applied during the release, by force. No request is lost, and the share is restored.
//
// Proves: Manifests applied again, workload or record deleted, restart.
func TestTrafficManifestsAppliedAgain(t *testing.T) {
	s := serving.Serve(t)
	canary := s.BeginRelease(serving.ByRoute())
	s.Upgrade(1)
	s.Weight(50)
	g := s.Load(load.Options{Rate: 600, LongEvery: 100, LongFor: serving.Longest})
	half := load.Shares{"model": 50, canary: 50}
	g.Begin(load.Phase{Name: "50 %", Want: half})
	s.Await(g, 1000)
	g.Begin(load.Phase{Name: "route applied again"}) // until the gateway serves the repaired route
	enforce(s, serving.HTTPRoutes, "model", fmt.Sprintf(`
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: model}
spec:
  parentRefs: [{name: %s, namespace: %s}]
  hostnames: [%s]
  rules: %s
`, cluster.GatewayName, cluster.GatewayNamespace, s.Host(), serving.Only))
	verified(s, 50)
	s.Await(g, 1000)
	g.Begin(load.Phase{Name: "route restored", Want: half})
	s.Await(g, 1000)
	g.Begin(load.Phase{Name: "Service applied again"})
	enforce(s, services, "stable", `
apiVersion: v1
kind: Service
metadata: {name: stable}
spec:
  selector: {leaderworkerset.sigs.k8s.io/worker-index: "0"}
  ports: [{name: http, port: 80, targetPort: http}]
`)
	s.Eventually("the isolation is back", func(ctx context.Context) error {
		svc, err := s.Kube.CoreV1().Services(s.Namespace).Get(ctx, "stable", metav1.GetOptions{})
		if err == nil && svc.Spec.Selector["leaderworkerset.sigs.k8s.io/name"] != s.Name {
			err = fmt.Errorf("it selects %v", svc.Spec.Selector)
		}
		return err
	})
	verified(s, 50)
	s.Await(g, 1000)
	g.Begin(load.Phase{Name: "Service restored", Want: half})
	s.Await(g, 1000)
	g.Begin(load.Phase{Name: "rolled back", Want: load.Shares{"model": 100}})
	s.End(pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)
	s.Await(g, 1000)
	s.Passes(g)
	s.MustBeRestored()
}

// routes are the HTTPRoutes of the test's namespace.
func routes(s *serving.Release) dynamic.ResourceInterface {
	return s.Objects(serving.HTTPRoutes)
}

// A canary leader whose worker is not ready would be an endpoint without Lockstep. It gets no request.
//
// Proves (test): Requests only to whole groups; what can't be routed is refused before a write.
func TestTrafficOnlyToWholeGroups(t *testing.T) {
	s := serving.Serve(t)
	// With a tolerated group the share does not follow the loss after ten seconds.
	canary := s.BeginBy(&pb.ReleasePolicy{
		Style: pb.Style_STYLE_CANARY, Batches: []string{"25%", "50%", "100%"}, FailureThreshold: "1", Traffic: serving.ByRoute(),
	})
	s.Upgrade(1) // two groups
	both := func(ctx context.Context) error { return s.HasEndpoints(ctx, "stable-canary", 2) }
	s.Eventually("both leaders are marked", both)
	s.Weight(50)
	g := s.Load(load.Options{Rate: 600})
	half := load.Shares{"model": 50, canary: 50}
	g.Begin(load.Phase{Name: "two groups", Want: half})
	s.Await(g, 1000)
	// Until its label is removed and the gateway has followed, requests may reach a group that broke on its own.
	g.Begin(load.Phase{Name: "a worker breaks", MayFail: true})
	s.Behave(canary+"-0-1", cluster.BehaviorNeverReady)
	s.Eventually("one leader is marked", func(ctx context.Context) error { return s.HasEndpoints(ctx, "stable-canary", 1) })
	s.Settled(g)
	before := s.Pods.Counts()[s.Namespace+"/"+canary+"-0"].Requests
	g.Begin(load.Phase{Name: "the other group", Want: half})
	s.Await(g, 2000)
	after := s.Pods.Counts()[s.Namespace+"/"+canary+"-0"].Requests
	assert.Equal(t, before, after, "%d requests came to the leader of a group that is not whole", after-before)
	g.Begin(load.Phase{Name: "whole again", Want: half})
	s.Behave(canary+"-0-1", "")
	s.Eventually("both leaders are marked again", both)
	s.Await(g, 1000)
	s.Passes(g)
	s.End(pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)
	s.MustBeRestored()
}

// The workload is deleted during the release, with either propagation policy: route and Service are restored, and a new
// workload with its name serves. In place, no generated object records what was changed.
//
// Proves: Manifests applied again, workload or record deleted, restart.
func TestTrafficWorkloadDeleted(t *testing.T) {
	for _, tc := range []struct {
		name  string
		style pb.Style
		way   metav1.DeletionPropagation
	}{
		{"background", pb.Style_STYLE_CANARY, metav1.DeletePropagationBackground},
		{"foreground", pb.Style_STYLE_CANARY, metav1.DeletePropagationForeground},
		{"in place", pb.Style_STYLE_PARTITION, metav1.DeletePropagationBackground},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := serving.Serve(t)
			canary := s.BeginBy(&pb.ReleasePolicy{Style: tc.style, Batches: []string{"25%", "50%", "100%"}, Traffic: serving.ByRoute()})
			s.Upgrade(0)
			s.Weight(10)
			sets := s.Sets()
			require.NoError(t, sets.Delete(t.Context(), s.Name, metav1.DeleteOptions{PropagationPolicy: &tc.way}))
			names := []string{s.Name}
			if tc.style != pb.Style_STYLE_PARTITION {
				names = append(names, canary)
			}
			s.Eventually("everything is deleted", func(ctx context.Context) error {
				for _, name := range names {
					_, err := sets.Get(ctx, name, metav1.GetOptions{})
					if err = errors.Join(suite.Gone(err), s.NoPods(ctx, name)); err != nil {
						return fmt.Errorf("%s: %w", name, err)
					}
				}
				return restored(ctx, s)
			})
			s.MustBeRestored()
			s.Deploy("model", 1)
			s.Served()
		})
	}
}

// restored returns nil once the user's objects are restored and the canary Service is deleted.
func restored(ctx context.Context, s *serving.Release) error {
	if now := s.Carriers(); now["Service"] != s.User["Service"] || now["route"] != s.User["route"] {
		return fmt.Errorf("the user's objects are not restored: %v", now)
	}
	_, err := s.Kube.CoreV1().Services(s.Namespace).Get(ctx, "stable-canary", metav1.GetOptions{})
	return suite.Gone(err)
}

// The record is removed during the release. Only the canary refers to the route: its requests are withdrawn, its leaders
// finish theirs, and nothing of it is left.
//
// Proves: Manifests applied again, workload or record deleted, restart.
func TestTrafficRecordRemoved(t *testing.T) {
	s := serving.Serve(t)
	canary := s.BeginRelease(serving.ByRoute())
	s.Upgrade(0)
	s.Weight(30)
	g := s.Load(load.Options{Rate: 600, LongEvery: 50, LongFor: serving.Longest})
	g.Begin(load.Phase{Name: "30 %", Want: load.Shares{"model": 70, canary: 30}})
	s.Await(g, 1500)
	g.Begin(load.Phase{Name: "record removed", Want: load.Shares{"model": 100}})
	_, err := s.Sets().Patch(t.Context(), s.Name, types.MergePatchType,
		[]byte(`{"metadata": {"annotations": {"lockstep.dev/release": null}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	s.Eventually("nothing is left", func(ctx context.Context) error {
		return errors.Join(s.NoPods(ctx, canary), restored(ctx, s))
	})
	s.Await(g, 1000)
	s.Passes(g)
	s.MustBeRestored()
}

// The driver is killed while requests reach leaders that it has warmed up. The next driver finds them in service.
//
// Proves: Manifests applied again, workload or record deleted, restart.
func TestTrafficDriverRestartKeepsWarmLeaders(t *testing.T) {
	s := serving.Serve(t)
	policy := serving.ByRoute()
	policy.WarmUp = &pb.WarmUpPolicy{Endpoint: ":8080/warm-up"}
	canary := s.BeginRelease(policy)
	s.Upgrade(0)
	s.Weight(50)
	g := s.Load(load.Options{Rate: 600})
	half := load.Shares{"model": 50, canary: 50}
	g.Begin(load.Phase{Name: "50 %", Want: half})
	s.Await(g, 1000)
	g.Begin(load.Phase{Name: "driver killed", Want: half})
	for i := range 3 {
		s.Kill()
		s.Begin()
		s.AwaitSync()
		s.Await(g, 1000*(i+1))
	}
	s.Passes(g)
	s.End(pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)
	s.MustBeRestored()
}

// A policy with unusable objects is refused before any write, with a remedy.
//
// Proves (test): Requests only to whole groups; what can't be routed is refused before a write.
func TestTrafficRefused(t *testing.T) {
	s := serving.Serve(t)
	s.Service("workers", `{leaderworkerset.sigs.k8s.io/name: model}`, 8)
	s.Service("empty", `{app: empty}`, 0)
	_, err := s.Adopt(t.Context(), &pb.AdoptRequest{Workload: s.Ref})
	require.NoError(t, err)
	s.Edit("v2")
	for _, tc := range []struct {
		name   string
		policy *pb.TrafficPolicy
		reason pb.ErrorReason
		says   []string
	}{
		{
			"a Service that selects workers", &pb.TrafficPolicy{StableService: "workers", HttpRoutes: []string{"model"}},
			pb.ErrorReason_ERROR_REASON_REFERENCE_UNUSABLE, []string{"Service workers", "workers of model", `worker-index: "0"`},
		},
		{
			"a Service that selects no pod", &pb.TrafficPolicy{StableService: "empty", HttpRoutes: []string{"model"}},
			pb.ErrorReason_ERROR_REASON_REFERENCE_UNUSABLE, []string{"Service empty", "no leader of model", `app: "empty"`},
		},
		{
			"no such Service", &pb.TrafficPolicy{StableService: "missing", HttpRoutes: []string{"model"}},
			pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND, []string{"Service missing", "create it"},
		},
		{
			"no such route", &pb.TrafficPolicy{StableService: "stable", HttpRoutes: []string{"missing"}},
			pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND, []string{"HTTPRoute missing", "create it"},
		},
	} {
		_, err := s.Initialize(t.Context(), &pb.InitializeRequest{
			Workload: s.Ref, ReleaseId: "r1", Policy: &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"100%"}, Traffic: tc.policy},
		})
		if plugin.Reason(err) != tc.reason {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.reason)
			continue
		}
		for _, word := range tc.says {
			assert.ErrorContains(t, err, word, tc.name)
		}
	}
	s.MustBeRestoredExcept("workers", "empty")
}

// A GRPCRoute and real calls: shares, a header and a cookie in the metadata, promotion. No call is lost or misrouted.
//
// Proves: GRPCRoute; a route that two workloads share; an abort while the canary drains.
func TestTrafficGRPC(t *testing.T) {
	s := serving.ServeBy(t, serving.GRPCRoute, func(e *serving.Env) { e.Deploy("model", 4) })
	policy := serving.ByRoute()
	policy.HttpRoutes, policy.GrpcRoutes = nil, []string{"model"}
	g := s.Load(load.Options{
		Rate: 600, LongEvery: 100, LongFor: serving.Longest, MatchEvery: 10, Match: http.Header{serving.Match: {"yes"}, "Cookie": {"a=b; tester=always"}},
	})
	g.Begin(load.Phase{Name: "stable alone", Want: load.Shares{"model": 100}})
	s.Await(g, 500)
	canary := s.BeginRelease(policy)
	s.Upgrade(0)
	g.Begin(load.Phase{Name: "25 %", Want: load.Shares{"model": 75, canary: 25}})
	s.Weight(25)
	s.Await(g, 4000)
	for name, m := range map[string]*pb.HeaderMatch{
		"header": {Name: serving.Match, Value: &pb.HeaderMatch_Exact{Exact: "yes"}},
		"cookie": {Name: "tester", Value: &pb.HeaderMatch_Cookie{Cookie: "always"}},
	} {
		g.Begin(load.Phase{Name: name + " match", Want: load.Shares{"model": 75, canary: 25}, WantMatch: canary})
		for _, matches := range [][]*pb.HeaderMatch{{m}, nil} {
			if matches == nil {
				s.Await(g, 3000)
				g.Begin(load.Phase{Name: name + " match removed", Want: load.Shares{"model": 75, canary: 25}})
			}
			_, err := s.SetHeaderRoute(t.Context(), &pb.SetHeaderRouteRequest{Workload: s.Ref, ReleaseId: "r1", Name: name, Matches: matches})
			require.NoError(t, err)
		}
		s.Await(g, 1500)
	}
	g.Begin(load.Phase{Name: "100 %", Want: load.Shares{canary: 100}})
	s.Upgrade(2)
	s.Weight(100)
	s.Await(g, 2000)
	g.Begin(load.Phase{Name: "promoted", Want: load.Shares{"model": 100}})
	s.End(pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE)
	s.Await(g, 2000)
	s.Passes(g)
	s.MustBeRestored()
}

// An abort while the canary of an earlier template drains: its leaders have long requests in flight, and are deleted when
// those have finished, whatever is decided in between.
//
// Proves: GRPCRoute; a route that two workloads share; an abort while the canary drains.
func TestTrafficAbortedWhileDraining(t *testing.T) {
	const endless = 6 * time.Second
	s := serving.Serve(t)
	policy := serving.ByRoute()
	policy.Drain = &pb.DrainPolicy{
		Period: durationpb.New(time.Second),
		Metric: "vllm:num_requests_running", MetricEndpoint: fmt.Sprintf(":%d/metrics", podserver.Port),
	}
	canary := s.BeginRelease(policy)
	s.Upgrade(1)
	s.Weight(50)
	g := s.Load(load.Options{Rate: 400, LongEvery: 40, LongFor: endless})
	g.Begin(load.Phase{Name: "50 %", Want: load.Shares{"model": 50, canary: 50}})
	s.Await(g, 3000)
	g.Begin(load.Phase{Name: "new template, old one drains"}) // too short for shares
	s.Edit("v3")
	s.Eventually("the old canary drains", func(ctx context.Context) error {
		c, err := s.CalculateBatchContext(ctx, &pb.CalculateBatchContextRequest{Workload: s.Ref})
		if err == nil && c.GetContext().GetReason() != "Draining" {
			err = fmt.Errorf("%s: %s", c.GetContext().GetReason(), c.GetContext().GetMessage())
		}
		return err
	})
	g.Begin(load.Phase{Name: "aborted", Want: load.Shares{"model": 100}})
	aborted := time.Now()
	r, err := s.Finalize(t.Context(), &pb.FinalizeRequest{Workload: s.Ref, ReleaseId: "r1", Intent: pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK})
	require.True(t, err == nil && !r.GetDone(), "Finalize while the canary drains: %v, %v", r, err)
	_, err = s.Sets().Get(t.Context(), canary, metav1.GetOptions{})
	assert.NoError(t, err, "the canary went before its requests were answered")
	s.End(pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)
	t.Logf("rolled back %s after the abort; a long request takes %s", time.Since(aborted).Round(time.Millisecond), endless)
	s.Await(g, 1500)
	report := s.Passes(g)
	assert.LessOrEqual(t, report.Rows[len(report.Rows)-1].Terminating, 0, "leaders were deleted before they had drained")
	s.MustBeRestored()
}

// Two workloads share a route, with a rule each: each release splits its own rule only.
//
// Proves: GRPCRoute; a route that two workloads share; an abort while the canary drains.
func TestTrafficSharedRoute(t *testing.T) {
	s := serving.Serve(t)
	s.Service("stable", serving.LeadersOf("model"), 4)
	s.Deploy("other", 2)
	s.Service("others", serving.LeadersOf("other"), 2)
	s.Route(`[
  {matches: [{headers: [{name: X-Model, value: other}]}], backendRefs: [{name: others, port: 80}]},
  {backendRefs: [{name: stable, port: 80}]}]`)
	s.Served()
	s.User = s.Carriers()
	second := *s
	second.Name, second.Ref = "other", &pb.WorkloadRef{Namespace: s.Namespace, Name: "other"}
	policy := serving.ByRoute()
	policy.StableService = "others"

	g := s.Load(load.Options{Rate: 600, LongEvery: 100, LongFor: serving.Longest})
	g.Begin(load.Phase{Name: "both stable", Want: load.Shares{"model": 100}})
	s.Await(g, 500)
	canary := s.BeginRelease(serving.ByRoute())
	otherCanary := second.BeginRelease(policy)
	s.Upgrade(1)
	second.Upgrade(1)
	g.Begin(load.Phase{Name: "both split", Want: load.Shares{"model": 50, canary: 50}})
	s.Weight(50)
	second.Weight(30)
	s.Await(g, 2000)
	g.Begin(load.Phase{Name: "the other rolled back", Want: load.Shares{"model": 50, canary: 50}})
	second.End(pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)
	verified(s, 50)
	s.Await(g, 1500)
	assert.True(t, ownsRoute(s), "the route is written, but no field manager owns its rules")
	g.Begin(load.Phase{Name: "100 %", Want: load.Shares{canary: 100}})
	s.Upgrade(2)
	s.Weight(100)
	s.Await(g, 100)
	time.Sleep(serving.Longest + time.Second) // what the stable leaders have, LeaderWorkerSet does not wait for
	g.Begin(load.Phase{Name: "promoted", Want: load.Shares{"model": 100}})
	s.End(pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE)
	s.Await(g, 1000)
	s.Passes(g)
	assert.LessOrEqual(t, s.Pods.Counts()[s.Namespace+"/"+otherCanary+"-0"].Requests, 0, "requests for one model came to the other's canary")
	s.MustBeRestoredExcept("others", "other")
	assert.False(t, ownsRoute(s), "the rules are owned after the last release")
}

// ownsRoute reports whether Lockstep has an entry in the route's managedFields.
func ownsRoute(s *serving.Release) bool {
	s.T.Helper()
	route := suite.GetObject(s.T.Context(), s.T, routes(s), "model")
	return slices.ContainsFunc(route.GetManagedFields(), traffic.IsLockstepEntry)
}
