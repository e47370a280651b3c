// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package traffic

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/text"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/load"
	"github.com/lockstep-rollouts/lockstep/test/podanswer"
	"github.com/lockstep-rollouts/lockstep/test/podserver"
	"github.com/lockstep-rollouts/lockstep/test/serving"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// roleSet is a DisaggregatedSet named model: its entry role gets the requests, and for each it calls the other one.
type roleSet struct {
	*serving.Release

	entry string
	sets  dynamic.ResourceInterface
	// pairs counts the served requests whose two revisions are equal, and mixed the others.
	pairs, mixed atomic.Int64
}

// serveRoles creates the set with four groups of prefill and two of decode behind a Service and a route, and a driver.
func serveRoles(t *testing.T) *roleSet {
	t.Helper()
	return serveRolesWith(t, map[string]string{})
}

// serveRolesWith is serveRoles with annotations of the pods of decode.
func serveRolesWith(t *testing.T, decode map[string]string) *roleSet {
	t.Helper()
	return serveRolesBy(t, "prefill", map[string]map[string]string{"prefill": {podserver.AnnotationCalls: "decode"}, "decode": decode})
}

// serveRolesBy is serveRoles with an entry role, and annotations of the pods of each role.
func serveRolesBy(t *testing.T, entry string, calls map[string]map[string]string) *roleSet {
	t.Helper()
	e := serving.NewEnv(t)
	suite.InstallRoles(t, e.Cluster)
	s := &roleSet{entry: entry, Release: serving.Prepare(e, driver.Start(t, driver.Kubeconfig(t, e.Cluster), e.Namespace))}
	s.Ref.Kind = "DisaggregatedSet"
	s.sets = e.Objects(schema.GroupVersionResource{Group: "disaggregatedset.x-k8s.io", Version: "v1", Resource: "disaggregatedsets"})
	e.Apply("%s", suite.RolesManifest("model", 4, 2, func(role string) string {
		return fmt.Sprintf(`{metadata: {annotations: %s}, spec: {containers: [{name: server, image: "example.com/model:v1", ports: [{name: http, containerPort: %d}]}]}}`,
			text.JSON(calls[role]), podserver.Port)
	}))
	e.Service(s.StableService, `{leaderworkerset.sigs.k8s.io/worker-index: "0", disaggregatedset.x-k8s.io/name: model, disaggregatedset.x-k8s.io/role: `+entry+`}`,
		map[string]int{"prefill": 4, "decode": 2}[entry])
	e.Route(serving.Only)
	e.Served()
	s.User = s.Carriers()
	return s
}

// child returns the name of the entry role's child of the template in the spec, once LWS has created it.
func (s *roleSet) child(known string) (name string) {
	s.T.Helper()
	s.Eventually("LWS creates a child of "+s.entry, func(ctx context.Context) error {
		list, err := s.Sets().List(ctx, metav1.ListOptions{LabelSelector: "disaggregatedset.x-k8s.io/role=" + s.entry})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if list.Items[i].Name != known {
				name = list.Items[i].Name
				return nil
			}
		}
		return fmt.Errorf("there is only %q", known)
	})
	return name
}

// begin adopts the set, gives both roles another image, and begins release r1. It returns the names of the entry role's children.
func (s *roleSet) begin(style pb.Style, batches ...string) (stable, update string) {
	s.T.Helper()
	return s.beginWith(&pb.ReleasePolicy{Style: style, Batches: batches, Traffic: serving.ByRoute()})
}

func (s *roleSet) beginWith(policy *pb.ReleasePolicy) (stable, update string) {
	s.T.Helper()
	_, err := s.Adopt(s.T.Context(), &pb.AdoptRequest{Workload: s.Ref})
	require.NoError(s.T, err)
	stable = s.child("")
	var patch []byte
	for i := range 2 {
		patch = fmt.Appendf(patch, `,{"op":"replace","path":"/spec/roles/%d/spec/leaderWorkerTemplate/workerTemplate/spec/containers/0/image","value":%q}`, i, s.Image("v2"))
	}
	_, err = s.sets.Patch(s.T.Context(), s.Name, types.JSONPatchType, append([]byte("["), append(patch[1:], ']')...), metav1.PatchOptions{})
	require.NoError(s.T, err)
	update = s.child(stable)
	s.Eventually("the release begins", func(ctx context.Context) error {
		_, err := s.Initialize(ctx, &pb.InitializeRequest{Workload: s.Ref, ReleaseId: "r1", Wait: serving.Long, Policy: policy})
		return err
	})
	return stable, update
}

// load starts requests, and compares both revisions of each answer.
func (s *roleSet) load() *load.Generator {
	s.T.Helper()
	return s.Load(load.Options{Rate: 600, LongEvery: 100, LongFor: serving.Longest, Side: func(a podanswer.Answer) string {
		switch p := a.Partner; {
		case a.Violation != "":
		case p == nil || a.SetRevision == "" || p.SetRevision != a.SetRevision:
			s.mixed.Add(1)
		default:
			s.pairs.Add(1)
		}
		return a.Workload
	}})
}

// TestTrafficDisaggregatedDeleted: a set is deleted in mid-release while no driver runs. The next driver frees its requests, whatever becomes
// of the children, and its bounds with them.
//
// Proves (test): A DisaggregatedSet is deleted in mid-release while no driver runs: the next one frees its requests.
func TestTrafficDisaggregatedDeleted(t *testing.T) {
	for _, way := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan} {
		t.Run(string(way), func(t *testing.T) {
			s := serveRoles(t)
			bounds := s.Objects(schema.GroupVersionResource{Group: "lockstep.dev", Version: "v1alpha1", Resource: "replicabounds"})
			s.begin(pb.Style_STYLE_CANARY, "50%", "100%")
			s.Upgrade(0)
			s.Weight(10)
			s.Kill()
			require.NoError(t, s.sets.Delete(t.Context(), s.Name, metav1.DeleteOptions{PropagationPolicy: &way}))
			s.Eventually("no object but the bounds names the set", func(ctx context.Context) error {
				set, err := s.sets.Get(ctx, s.Name, metav1.GetOptions{})
				if way == metav1.DeletePropagationForeground && err == nil && set.GetDeletionTimestamp() != nil {
					return nil // it waits for its bounds
				}
				return suite.Gone(err)
			})
			s.Restart()
			s.Eventually("the requests are free", func(ctx context.Context) error {
				_, errBounds := bounds.Get(ctx, s.Name, metav1.GetOptions{})
				_, errSet := s.sets.Get(ctx, s.Name, metav1.GetOptions{})
				return cmp.Or(suite.Gone(errBounds), suite.Gone(errSet), restored(ctx, s.Release))
			})
		})
	}
}

// passes ends the load, and fails the test for a lost request, a wrong share, or a request that prefill and decode served at different
// revisions.
func (s *roleSet) passes(g *load.Generator) {
	s.T.Helper()
	requests, failed := s.Passes(g).Totals()
	if pairs, mixed := int(s.pairs.Load()), int(s.mixed.Load()); mixed > 0 || pairs != requests-failed {
		s.T.Errorf("prefill and decode had the same revision in %d of %d served requests, and different ones in %d", pairs, requests-failed, mixed)
	}
	s.restored()
}

// promote releases a canary with a number of requests in each phase, and promotes it.
func (s *roleSet) promote(n int) {
	s.T.Helper()
	g := s.load()
	stable, update := s.begin(pb.Style_STYLE_CANARY, "50%", "100%")
	g.Begin(load.Phase{Name: "first batch, weight 0", Want: load.Shares{stable: 100}})
	s.Upgrade(0)
	s.Await(g, n/2)
	g.Begin(load.Phase{Name: "30 %", Want: load.Shares{stable: 70, update: 30}})
	s.Weight(30)
	s.Await(g, n)
	g.Begin(load.Phase{Name: "second batch, 50 %", Want: load.Shares{stable: 50, update: 50}})
	s.Upgrade(1)
	s.Weight(50)
	s.Await(g, n)
	g.Begin(load.Phase{Name: "promoted", Want: load.Shares{update: 100}})
	s.End(pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE)
	s.Await(g, n)
	s.passes(g)
}

// The entry role's leaders get the requests of a DisaggregatedSet, and the revision tells the sides apart. A canary is promoted: its requests
// move before the old groups go, and none is lost. Each is served by prefill and decode of one revision. The user's Service and route are
// restored. As in llm-d, requests enter by decode, the second role of the spec.
//
// Proves (test): Requests of a DisaggregatedSet through a real gateway: promoted, rolled back, and unit by unit, none lost.
func TestTrafficDisaggregated(t *testing.T) {
	serveRolesBy(t, "decode", map[string]map[string]string{"prefill": {}, "decode": {podserver.AnnotationCalls: "prefill"}}).promote(6000)
}

// TestTrafficDisaggregatedPairs sends enough requests to show a loss, or a pair of two revisions, of one in ten thousand: while a canary is
// promoted, and while it is aborted.
//
// Proves: 50,000 requests each, to prefill that calls decode of its revision: promoted and aborted, no pair is mixed, none lost.
func TestTrafficDisaggregatedPairs(t *testing.T) {
	const n = serving.Enough * 2 / 7
	t.Run("promoted", func(t *testing.T) { serveRoles(t).promote(n) })
	t.Run("aborted", func(t *testing.T) {
		s := serveRoles(t)
		g := s.load()
		stable, update := s.begin(pb.Style_STYLE_CANARY, "50%", "100%")
		g.Begin(load.Phase{Name: "first batch, 30 %", Want: load.Shares{stable: 70, update: 30}})
		s.Upgrade(0)
		s.Weight(30)
		s.Await(g, n)
		g.Begin(load.Phase{Name: "second batch, 50 %", Want: load.Shares{stable: 50, update: 50}})
		s.Upgrade(1)
		s.Weight(50)
		s.Await(g, n)
		g.Begin(load.Phase{Name: "aborted", Want: load.Shares{stable: 100}})
		s.End(pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)
		s.Await(g, serving.Enough-2*n)
		s.passes(g)
	})
}

// Requests that decode has still got, as one that generates for long after prefill has answered, end before its old groups are removed, also
// if they are removed first.
//
// Proves (test): Requests that decode still has end before its old groups are removed.
func TestTrafficDisaggregatedDrainsRoles(t *testing.T) {
	s := serveRoles(t)
	policy := &pb.ReleasePolicy{
		Style: pb.Style_STYLE_CANARY, Batches: []string{"100%"}, Traffic: serving.ByRoute(), RoleOrder: []string{"decode", "prefill"},
	}
	policy.Traffic.Drain = &pb.DrainPolicy{
		Period: durationpb.New(time.Second), Timeout: durationpb.New(await.Patience), Roles: []string{"decode"},
		Metric: "vllm:num_requests_running", MetricEndpoint: fmt.Sprintf(":%d/metrics", podserver.Port),
	}
	s.beginWith(policy)
	s.Upgrade(0)
	old, err := s.Kube.CoreV1().Pods(s.Namespace).List(t.Context(), metav1.ListOptions{
		LabelSelector: "disaggregatedset.x-k8s.io/role=decode,leaderworkerset.sigs.k8s.io/worker-index=0",
	})
	require.NoError(t, err)
	answers, asked := make(chan error), 0
	for _, pod := range old.Items {
		if pod.Spec.Containers[0].Image != s.Image("v1") {
			continue
		}
		asked++
		go func() {
			answers <- generate(t.Context(), fmt.Sprintf("http://%s:%d/?duration=15s", pod.Status.PodIP, podserver.Port))
		}()
	}
	s.End(pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE)
	for range asked {
		assert.NoError(t, <-answers)
	}
	assert.Equal(t, 2, asked, "old groups of decode were asked")
	s.restored()
}

// generate makes a request, and returns an error unless it is served to its end.
func generate(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(response.Body)
		return fmt.Errorf("%s is answered with %s: %s", url, response.Status, body)
	}
	return nil
}

// An abort withdraws the share before the update's groups go.
//
// Proves (test): Requests of a DisaggregatedSet through a real gateway: promoted, rolled back, and unit by unit, none lost.
func TestTrafficDisaggregatedRollback(t *testing.T) {
	s := serveRoles(t)
	g := s.load()
	stable, update := s.begin(pb.Style_STYLE_BLUE_GREEN, "100%")
	g.Begin(load.Phase{Name: "second set", Want: load.Shares{stable: 100}})
	s.Upgrade(0)
	s.Await(g, 2000)
	g.Begin(load.Phase{Name: "switched", Want: load.Shares{update: 100}})
	s.Weight(100)
	s.Await(g, 4000)
	g.Begin(load.Phase{Name: "rolled back", Want: load.Shares{stable: 100}})
	began := time.Now()
	s.End(pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)
	t.Logf("rolled back after %s, of which the drain takes %s", time.Since(began).Round(time.Millisecond), serving.ByRoute().GetDrain().GetPeriod().AsDuration())
	s.Await(g, 4000)
	s.passes(g)
}

// While units are replaced, the share follows them, both ways, and no request is lost: the leaders of prefill are drained, and pods of decode
// finish their requests while they terminate.
//
// Proves (test): Requests of a DisaggregatedSet through a real gateway: promoted, rolled back, and unit by unit, none lost.
func TestTrafficDisaggregatedShifted(t *testing.T) {
	s := serveRolesWith(t, map[string]string{cluster.AnnotationTermination: serving.Longest.String()})
	g := s.load()
	stable, update := s.begin(pb.Style_STYLE_PARTITION, "25%", "75%")
	g.Begin(load.Phase{Name: "a unit", Want: load.Shares{stable: 75, update: 25}})
	s.Upgrade(0)
	s.Await(g, 6000)
	g.Begin(load.Phase{Name: "three units", Want: load.Shares{stable: 25, update: 75}})
	s.Upgrade(1)
	s.Await(g, 6000)
	g.Begin(load.Phase{Name: "rolled back", Want: load.Shares{stable: 100}})
	s.End(pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)
	s.Await(g, 4000)
	s.passes(g)
}

// restored fails the test unless the user's Service and route are as they were.
func (s *roleSet) restored() {
	s.T.Helper()
	if now := s.Carriers(); now["Service"] != s.User["Service"] || now["route"] != s.User["route"] {
		s.T.Errorf("the user's objects are not as they were:\n%v\n%v", s.User, now)
	}
}
