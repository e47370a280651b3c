// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package serving

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/text"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// Release is a workload that serves requests, its driver, and a release of it named r1.
type Release struct {
	*Env
	*driver.Driver

	// StableService and RouteName are the names of the user's Service and route.
	StableService, RouteName string

	Ref *pb.WorkloadRef
	// Image returns the image of a tag.
	Image func(tag string) string
	// User has the user's Service and route, as they were.
	User map[string]string
}

// Match is the name of the header of testers.
const Match = "X-Canary"

// HTTPRoutes is the resource of routes.
var (
	HTTPRoutes = schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "httproutes"}
	grpcRoutes = schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "grpcroutes"}
)

// Long is how long calls wait at most.
var Long = durationpb.New(await.Patience)

// Enough requests show a loss of one in about ten thousand.
const Enough = 50_000

// Longest is the duration of a long request.
const Longest = 2 * time.Second

// Serve creates a workload of four groups behind a Service and a route, and a driver with the permissions of config/base.
func Serve(t *testing.T) *Release {
	t.Helper()
	return ServeBy(t, HTTPRoute, func(e *Env) { e.Deploy("model", 4) })
}

// ServeBy is [Serve] with another kind of route, or for the test's own workload named model.
func ServeBy(t *testing.T, kind string, deploy func(*Env)) *Release {
	t.Helper()
	e := NewEnv(t)
	e.Kind = kind
	s := Prepare(e, driver.Start(t, driver.Kubeconfig(t, e.Cluster), e.Namespace))
	deploy(e)
	s.Expose()
	return s
}

// Prepare returns the release of a workload named model, which the test creates and exposes.
func Prepare(e *Env, d *driver.Driver) *Release {
	return &Release{
		Env: e, Driver: d,
		StableService: "stable", RouteName: "model",
		Ref:   &pb.WorkloadRef{Namespace: e.Namespace, Name: "model"},
		Image: func(tag string) string { return "example.com/model:" + tag },
	}
}

// Expose creates the user's Service and route for all groups of the workload, and returns when they serve.
func (s *Release) Expose() {
	s.T.Helper()
	w := s.Workload(s.T.Context())
	s.Service(s.StableService, `{leaderworkerset.sigs.k8s.io/worker-index: "0"}`, int(*w.Spec.Replicas))
	s.Route(Only)
	s.Served()
	s.User = s.Carriers()
}

// Carriers are the user's objects, without what the API server and the gateway write.
func (s *Release) Carriers() map[string]string {
	s.T.Helper()
	out := map[string]string{}
	svc := suite.Get(s.T.Context(), s.T, s.Kube.CoreV1().Services(s.Namespace), s.StableService)
	out["Service"] = text.JSON([]any{svc.Spec, svc.Labels, svc.Annotations})
	resource := map[string]schema.GroupVersionResource{HTTPRoute: HTTPRoutes, GRPCRoute: grpcRoutes}[s.Kind]
	route := suite.GetObject(s.T.Context(), s.T, s.Objects(resource), s.RouteName)
	out["route"] = text.JSON([]any{route.Object["spec"], route.GetLabels(), route.GetAnnotations()})
	return out
}

// Edit gives the workload another image. The changes are part of the same write.
func (s *Release) Edit(tag string, changes ...func(*lws.LeaderWorkerSet)) {
	s.T.Helper()
	suite.Edit(s.T, s.Sets(), s.Name, func(w *lws.LeaderWorkerSet) {
		suite.SetImages(w, s.Image(tag))
		for _, change := range changes {
			change(w)
		}
	})
}

// BeginRelease adopts the workload, changes its template and begins release r1. It returns the canary's name.
func (s *Release) BeginRelease(policy *pb.TrafficPolicy) string {
	s.T.Helper()
	return s.BeginBy(&pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"25%", "50%", "100%"}, Traffic: policy})
}

// BeginBy is [Release.BeginRelease] with the test's own policy, and optionally with more changes of the template.
func (s *Release) BeginBy(policy *pb.ReleasePolicy, changes ...func(*lws.LeaderWorkerSet)) string {
	s.T.Helper()
	_, err := s.Adopt(s.T.Context(), &pb.AdoptRequest{Workload: s.Ref})
	require.NoError(s.T, err)
	s.Edit("v2", changes...)
	r, err := s.Initialize(s.T.Context(), &pb.InitializeRequest{
		Workload: s.Ref, ReleaseId: "r1", Wait: Long, Policy: policy,
	})
	require.NoError(s.T, err)
	c := r.GetContext()
	require.Equal(s.T, pb.State_STATE_HOLDING, c.GetState(), "after Initialize: %v", c)
	return r.GetContext().GetCanaryWorkload()
}

// ByRoute splits the requests at the route. No request takes longer than the drain.
func ByRoute() *pb.TrafficPolicy {
	return &pb.TrafficPolicy{
		StableService: "stable", HttpRoutes: []string{"model"}, Drain: &pb.DrainPolicy{Period: durationpb.New(Longest + 3*time.Second)},
	}
}

// Upgrade requests a batch and returns when it is ready.
func (s *Release) Upgrade(batch int32) {
	s.T.Helper()
	r, err := s.UpgradeBatch(s.T.Context(), &pb.UpgradeBatchRequest{
		Workload: s.Ref, ReleaseId: "r1", Target: &pb.UpgradeBatchRequest_Batch{Batch: batch}, Wait: Long,
	})
	require.NoError(s.T, err)
	c := r.GetContext()
	require.Equal(s.T, pb.State_STATE_READY, c.GetState(), "batch %d: %v", batch, c)
}

// Weight requests a share and returns once the driver reports it as verified.
func (s *Release) Weight(weight int32) {
	s.T.Helper()
	r, err := s.SetWeight(s.T.Context(), &pb.SetWeightRequest{Workload: s.Ref, ReleaseId: "r1", Weight: weight, Wait: Long})
	require.True(s.T, err == nil && r.GetVerified(), "SetWeight %d: %v, %v", weight, r, err)
	v, err := s.VerifyWeight(s.T.Context(), &pb.VerifyWeightRequest{Workload: s.Ref, ReleaseId: "r1", Weight: weight})
	require.True(s.T, err == nil && v.GetVerified() && v.GetWeight() == weight, "VerifyWeight %d: %v, %v", weight, v, err)
}

// End promotes or rolls the release back, and returns when it has ended. Groups may be updated one after another meanwhile.
func (s *Release) End(intent pb.FinalizeIntent) {
	s.T.Helper()
	var r *pb.FinalizeResponse
	for range 4 {
		var err error
		r, err = s.Finalize(s.T.Context(), &pb.FinalizeRequest{Workload: s.Ref, ReleaseId: "r1", Intent: intent, Wait: Long})
		require.NoError(s.T, err, "Finalize")
		if r.GetDone() {
			return
		}
	}
	s.T.Fatalf("Finalize: %v", r)
}

// MustBeRestored fails the test unless the user's objects are restored and no generated object is left.
func (s *Release) MustBeRestored() {
	s.T.Helper()
	s.MustBeRestoredExcept()
}

// MustBeRestoredExcept is [Release.MustBeRestored] for a test with more Services.
func (s *Release) MustBeRestoredExcept(more ...string) {
	s.T.Helper()
	if now := s.Carriers(); now["Service"] != s.User["Service"] || now["route"] != s.User["route"] {
		s.T.Errorf("the user's objects are not as they were:\n%v\n%v", s.User, now)
	}
	all := suite.List(s.T, s.Kube.CoreV1().Services(s.Namespace), metav1.ListOptions{})
	for i := range all.Items {
		// LWS's own has the workload's name.
		name := all.Items[i].Name
		assert.False(s.T, name != s.StableService && name != s.Name && !slices.Contains(more, name), "Service %s is left", name)
	}
}
