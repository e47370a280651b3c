// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package traffic

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	lwsclient "sigs.k8s.io/lws/client-go/clientset/versioned"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/await"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/load"
	"github.com/lockstep-rollouts/lockstep/test/podserver"
)

// served is a workload that serves requests, and its driver.
type served struct {
	*env
	*driver.Driver

	name string
	ref  *pb.WorkloadRef
	sets lwsclient.Interface
	user map[string]string // the user's Service and route, as they were
}

const match = "X-Canary"

var (
	httpRoutes = schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "httproutes"}
	grpcRoutes = schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "grpcroutes"}
)

// serve creates a workload of four groups behind a Service and a route, and a driver with the permissions of config/rbac.
func serve(t *testing.T) *served {
	t.Helper()
	return serveBy(t, httpRoute, func(e *env) { e.deploy("model", 4) })
}

// serveBy is serve with another kind of route, or for the test's own workload.
func serveBy(t *testing.T, kind string, deploy func(*env)) *served {
	t.Helper()
	e := newEnv(t)
	e.kind = kind
	s := &served{
		env: e, name: "model", ref: &pb.WorkloadRef{Namespace: e.namespace, Name: "model"},
		sets: lwsclient.NewForConfigOrDie(e.cluster.RESTConfig()),
	}
	s.Driver = driver.Start(t, driver.Kubeconfig(t, e.cluster), e.namespace)
	deploy(e)
	e.service("stable", `{leaderworkerset.sigs.k8s.io/worker-index: "0"}`, 4)
	e.route(only)
	e.served()
	s.user = s.carriers()
	return s
}

// carriers are the user's objects, without what the API server and the gateway write.
func (s *served) carriers() map[string]string {
	s.t.Helper()
	out := map[string]string{}
	svc, err := s.kube.CoreV1().Services(s.namespace).Get(s.t.Context(), "stable", metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	out["Service"] = asJSON(s.t, []any{svc.Spec, svc.Labels, svc.Annotations})
	resource := map[string]schema.GroupVersionResource{httpRoute: httpRoutes, grpcRoute: grpcRoutes}[s.kind]
	routes := dynamic.NewForConfigOrDie(s.cluster.RESTConfig()).Resource(resource).Namespace(s.namespace)
	route, err := routes.Get(s.t.Context(), "model", metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	out["route"] = asJSON(s.t, []any{route.Object["spec"], route.GetLabels(), route.GetAnnotations()})
	return out
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// edit gives the workload another image.
func (s *served) edit(tag string) {
	s.t.Helper()
	raw := fmt.Appendf(nil, `[{"op": "replace", "path": "/spec/leaderWorkerTemplate/workerTemplate/spec/containers/0/image", "value": "example.com/%s:%s"}]`, s.name, tag)
	if _, err := s.sets.LeaderworkersetV1().LeaderWorkerSets(s.namespace).Patch(s.t.Context(), s.name, types.JSONPatchType, raw, metav1.PatchOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

var long = durationpb.New(await.Patience)

// begin adopts the workload, changes its template and begins release r1. It returns the canary's name.
func (s *served) begin(policy *pb.TrafficPolicy) string {
	s.t.Helper()
	return s.beginBy(&pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"25%", "50%", "100%"}, Traffic: policy})
}

// beginBy is begin with the test's own policy.
func (s *served) beginBy(policy *pb.ReleasePolicy) string {
	s.t.Helper()
	if _, err := s.Adopt(s.t.Context(), &pb.AdoptRequest{Workload: s.ref}); err != nil {
		s.t.Fatal(err)
	}
	s.edit("v2")
	r, err := s.Initialize(s.t.Context(), &pb.InitializeRequest{
		Workload: s.ref, ReleaseId: "r1", Wait: long, Policy: policy,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	if c := r.GetContext(); c.GetState() != pb.State_STATE_HOLDING {
		s.t.Fatalf("after Initialize: %v", c)
	}
	return r.GetContext().GetCanaryWorkload()
}

// byRoute splits the requests at the route. No request takes longer than the drain.
func byRoute() *pb.TrafficPolicy {
	return &pb.TrafficPolicy{
		StableService: "stable", HttpRoutes: []string{"model"}, Drain: &pb.DrainPolicy{Period: durationpb.New(longest + 3*time.Second)},
	}
}

// enough requests show a loss of one in about ten thousand.
const enough = 50_000

// longest is the duration of a long request.
const longest = 2 * time.Second

func (s *served) upgrade(batch int32) {
	s.t.Helper()
	r, err := s.UpgradeBatch(s.t.Context(), &pb.UpgradeBatchRequest{
		Workload: s.ref, ReleaseId: "r1", Target: &pb.UpgradeBatchRequest_Batch{Batch: batch}, Wait: long,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	if c := r.GetContext(); c.GetState() != pb.State_STATE_READY {
		s.t.Fatalf("batch %d: %v", batch, c)
	}
}

// weight requests a share and returns once the driver reports it as verified.
func (s *served) weight(weight int32) {
	s.t.Helper()
	r, err := s.SetWeight(s.t.Context(), &pb.SetWeightRequest{Workload: s.ref, ReleaseId: "r1", Weight: weight, Wait: long})
	if err != nil || !r.GetVerified() {
		s.t.Fatalf("SetWeight %d: %v, %v", weight, r, err)
	}
	v, err := s.VerifyWeight(s.t.Context(), &pb.VerifyWeightRequest{Workload: s.ref, ReleaseId: "r1", Weight: weight})
	if err != nil || !v.GetVerified() || v.GetWeight() != weight {
		s.t.Fatalf("VerifyWeight %d: %v, %v", weight, v, err)
	}
}

func (s *served) finalize(intent pb.FinalizeIntent) {
	s.t.Helper()
	r, err := s.Finalize(s.t.Context(), &pb.FinalizeRequest{Workload: s.ref, ReleaseId: "r1", Intent: intent, Wait: long})
	if err != nil || !r.GetDone() {
		s.t.Fatalf("Finalize: %v, %v", r, err)
	}
}

// mustBeRestored fails the test unless the user's objects are restored and no generated object is left.
func (s *served) mustBeRestored() {
	s.t.Helper()
	s.mustBeRestoredExcept()
}

// mustBeRestoredExcept is mustBeRestored for a test with more Services.
func (s *served) mustBeRestoredExcept(more ...string) {
	s.t.Helper()
	if now := s.carriers(); now["Service"] != s.user["Service"] || now["route"] != s.user["route"] {
		s.t.Errorf("the user's objects are not as they were:\n%v\n%v", s.user, now)
	}
	all, err := s.kube.CoreV1().Services(s.namespace).List(s.t.Context(), metav1.ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	for i := range all.Items {
		// LWS's own has the workload's name.
		if name := all.Items[i].Name; name != "stable" && name != s.name && !slices.Contains(more, name) {
			s.t.Errorf("Service %s is left", name)
		}
	}
}

// A complete release: the requested shares, header route, promotion. No request is lost or misrouted.
func TestTrafficRelease(t *testing.T) {
	s := serve(t)
	g := s.load(load.Options{
		Rate: 800, LongEvery: 100, LongFor: longest, MatchEvery: 10, Match: http.Header{match: {"yes"}, "Cookie": {"session=1; tester=always; theme=dark"}},
	})
	stable := func(canary string, weight float64) load.Shares {
		shares := load.Shares{}
		if weight < 100 {
			shares["model"] = 100 - weight
		}
		if weight > 0 {
			shares[canary] = weight
		}
		return shares
	}
	g.Begin(load.Phase{Name: "stable alone", Want: load.Shares{"model": 100}})
	s.await(g, 500)
	canary := s.begin(byRoute())
	g.Begin(load.Phase{Name: "first batch, weight 0", Want: load.Shares{"model": 100}})
	s.upgrade(0)
	s.await(g, 3000)
	g.Begin(load.Phase{Name: "10 %", Want: stable(canary, 10)})
	s.weight(10)
	s.await(g, 9000)
	g.Begin(load.Phase{Name: "header match", Want: stable(canary, 10), WantMatch: canary})
	if _, err := s.SetHeaderRoute(t.Context(), &pb.SetHeaderRouteRequest{
		Workload: s.ref, ReleaseId: "r1", Name: "testers",
		Matches: []*pb.HeaderMatch{{Name: match, Value: &pb.HeaderMatch_Exact{Exact: "yes"}}},
	}); err != nil {
		t.Fatal(err)
	}
	s.await(g, 9000)
	g.Begin(load.Phase{Name: "header match removed", Want: stable(canary, 10)})
	if _, err := s.SetHeaderRoute(t.Context(), &pb.SetHeaderRouteRequest{Workload: s.ref, ReleaseId: "r1", Name: "testers"}); err != nil {
		t.Fatal(err)
	}
	s.await(g, 3000)
	g.Begin(load.Phase{Name: "cookie match", Want: stable(canary, 10), WantMatch: canary})
	if _, err := s.SetHeaderRoute(t.Context(), &pb.SetHeaderRouteRequest{
		Workload: s.ref, ReleaseId: "r1", Name: "testers",
		Matches: []*pb.HeaderMatch{{Name: "tester", Value: &pb.HeaderMatch_Cookie{Cookie: "always"}}},
	}); err != nil {
		t.Fatal(err)
	}
	s.await(g, 4000)
	g.Begin(load.Phase{Name: "cookie match removed", Want: stable(canary, 10)})
	if _, err := s.SetHeaderRoute(t.Context(), &pb.SetHeaderRouteRequest{Workload: s.ref, ReleaseId: "r1", Name: "testers"}); err != nil {
		t.Fatal(err)
	}
	s.await(g, 2000)
	g.Begin(load.Phase{Name: "second batch, 50 %", Want: stable(canary, 50)})
	s.upgrade(1)
	s.weight(50)
	s.await(g, 9000)
	g.Begin(load.Phase{Name: "driver killed", Want: stable(canary, 50)})
	s.Kill()
	s.Begin()
	s.AwaitSync()
	s.await(g, 3000)
	g.Begin(load.Phase{Name: "third batch, 100 %", Want: stable(canary, 100)})
	s.upgrade(2)
	s.weight(100)
	s.await(g, 5000)
	g.Begin(load.Phase{Name: "promoted", Want: load.Shares{"model": 100}})
	s.finalize(pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE)
	s.await(g, 6000)
	if requests, _ := s.passes(g).Totals(); requests < enough {
		t.Errorf("%d requests prove less than %d do", requests, enough)
	}
	s.mustBeRestored()
}

// An abort during the release: the canary's requests are withdrawn before its groups are deleted, and its leaders finish
// theirs. A leader gets its first request from the driver.
func TestTrafficRollback(t *testing.T) {
	s := serve(t)
	g := s.load(load.Options{Rate: 800, LongEvery: 100, LongFor: longest})
	g.Begin(load.Phase{Name: "stable alone", Want: load.Shares{"model": 100}})
	s.await(g, 500)
	policy := byRoute()
	policy.WarmUp = &pb.WarmUpPolicy{Endpoint: fmt.Sprintf(":%d/warm-up", podserver.Port)}
	policy.Drain = &pb.DrainPolicy{
		// Requests that the gateway sent before it accepted the route are counted from the first reading of the metric.
		Period: durationpb.New(time.Second),
		Metric: "vllm:num_requests_running", MetricEndpoint: fmt.Sprintf(":%d/metrics", podserver.Port),
	}
	canary := s.begin(policy)
	s.upgrade(0)
	if s.pods.Counts()[s.namespace+"/"+canary+"-0"].Requests == 0 {
		t.Error("the batch is ready, and its leader got no warm-up")
	}
	s.weight(30)
	g.Begin(load.Phase{Name: "30 %", Want: load.Shares{"model": 70, canary: 30}})
	s.await(g, 4000)
	g.Begin(load.Phase{Name: "rolled back", Want: load.Shares{"model": 100}})
	s.finalize(pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)
	s.await(g, 4000)
	s.passes(g)
	s.mustBeRestored()
}
