// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package traffic

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/text"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/podserver"
	"github.com/lockstep-rollouts/lockstep/test/poolgateway"
	"github.com/lockstep-rollouts/lockstep/test/serving"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// rolePools is a DisaggregatedSet as in llm-d: a pool that selects the leaders of both roles by a label of their templates. The gateway reports
// on its route and pools, and nothing sends requests.
type rolePools struct {
	*roleSet

	pools dynamic.ResourceInterface
	user  string

	mu sync.Mutex
	// selected has each selector that the user's pool had, without the user's own labels.
	selected []string
}

// servePools creates the set with four groups of prefill and two of decode behind a Service of the entry role, a pool and a route, and a driver.
func servePools(t *testing.T, entry string) *rolePools {
	t.Helper()
	e := serving.NewEnv(t)
	suite.InstallRoles(t, e.Cluster)
	s := &rolePools{roleSet: &roleSet{entry: entry, Release: serving.Prepare(e, driver.Start(t, driver.Kubeconfig(t, e.Cluster), e.Namespace))}}
	s.Ref.Kind = "DisaggregatedSet"
	s.sets = e.Objects(disaggregated.GroupVersion.WithResource("disaggregatedsets"))
	s.pools = e.Objects(schema.GroupVersionResource{Group: "inference.networking.k8s.io", Version: "v1", Resource: "inferencepools"})
	e.Apply("%s", suite.RolesManifest("model", 4, 2, func(role string) string {
		return fmt.Sprintf(`{metadata: {labels: {llm-d.ai/guide: pd, llm-d.ai/role: %s}}, spec: {containers: [{name: server, image: "example.com/model:v1", ports: [{name: http, containerPort: %d}]}]}}`,
			role, podserver.Port)
	}))
	e.Service(s.StableService, `{leaderworkerset.sigs.k8s.io/worker-index: "0", llm-d.ai/guide: pd, llm-d.ai/role: `+entry+`}`,
		map[string]int{"prefill": 4, "decode": 2}[entry])
	e.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: picker, labels: {app: picker}}
spec: {containers: [{name: picker, image: example.com/picker:v1, ports: [{name: http, containerPort: 9002}]}]}
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: model}
spec:
  selector: {matchLabels: {llm-d.ai/guide: pd, leaderworkerset.sigs.k8s.io/worker-index: "0"}}
  targetPorts: [{number: %[1]d}]
  endpointPickerRef: {name: picker, port: {number: 80}}
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: other}
spec:
  selector: {matchLabels: {llm-d.ai/guide: pd}}
  targetPorts: [{number: %[1]d}]
  endpointPickerRef: {name: picker, port: {number: 80}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: model}
spec:
  parentRefs: [{name: pools}]
  rules: [{backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: model}]}]
`, podserver.Port)
	e.Service("picker", "{app: picker}", 1)
	e.Service("canary-picker", "{app: picker}", 1)
	g, err := poolgateway.Start(t.Context(), e.Cluster.RESTConfig(), s.Namespace, s.RouteName)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, g.Stop())
	})
	s.User, s.user = s.Carriers(), text.JSON(s.pool("model").Object["spec"])
	s.watch()
	return s
}

// watch records how the selector of the user's pool changes.
func (s *rolePools) watch() {
	w, err := s.pools.Watch(s.T.Context(), metav1.SingleObject(metav1.ObjectMeta{Name: "model"}))
	require.NoError(s.T, err)
	s.T.Cleanup(w.Stop)
	go func() {
		for event := range w.ResultChan() {
			if pool, ok := event.Object.(*unstructured.Unstructured); ok {
				s.mu.Lock()
				if added := s.added(pool); len(s.selected) == 0 || s.selected[len(s.selected)-1] != added {
					s.selected = append(s.selected, added)
				}
				s.mu.Unlock()
			}
		}
	}()
}

// added returns the labels of a pool's selector that the user has not set.
func (s *rolePools) added(pool *unstructured.Unstructured) string {
	selector, _, _ := unstructured.NestedStringMap(pool.Object, "spec", "selector", "matchLabels")
	delete(selector, "llm-d.ai/guide")
	delete(selector, "leaderworkerset.sigs.k8s.io/worker-index")
	var all []string
	for _, label := range slices.Sorted(maps.Keys(selector)) {
		_, name, _ := strings.Cut(label, "/")
		all = append(all, name+"="+selector[label])
	}
	return strings.Join(all, " ")
}

func (s *rolePools) pool(name string) *unstructured.Unstructured {
	s.T.Helper()
	pool := suite.GetObject(s.T.Context(), s.T, s.pools, name)
	return pool
}

// selects waits until a pool selects ready leaders of one revision: so many of prefill and of decode.
func (s *rolePools) selects(name, child string, prefill, decode int) {
	s.T.Helper()
	want := fmt.Sprintf("%d of prefill and %d of decode", prefill, decode)
	s.Eventually(fmt.Sprintf("pool %s selects %s", name, want), func(ctx context.Context) error {
		selector, _, _ := unstructured.NestedStringMap(s.pool(name).Object, "spec", "selector", "matchLabels")
		list, err := s.Kube.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: labels.FormatLabels(selector)})
		if err != nil {
			return err
		}
		roles := map[string]int{}
		for _, pod := range list.Items {
			if pod.DeletionTimestamp != nil || !podserver.Ready(&pod) {
				continue
			}
			if pod.Labels["leaderworkerset.sigs.k8s.io/worker-index"] != "0" || pod.Labels[disaggregated.RevisionLabelKey] != revisionOf(child) {
				return fmt.Errorf("it selects pod %s", pod.Name)
			}
			roles[pod.Labels[disaggregated.RoleLabelKey]]++
		}
		if got := fmt.Sprintf("%d of prefill and %d of decode", roles["prefill"], roles["decode"]); got != want {
			return fmt.Errorf("it selects %s", got)
		}
		return nil
	})
}

// warnsOf requires that preflight warns of one pool, which leads to a role at every revision.
func (s *rolePools) warnsOf(policy *pb.ReleasePolicy, pool string) {
	s.T.Helper()
	report, err := s.Preflight(s.T.Context(), &pb.PreflightRequest{Workload: s.Ref, Policy: policy, SkipNodes: true})
	require.NoError(s.T, err)
	var found []string
	for _, f := range report.GetFindings() {
		if f.GetRule() == "RolesNotPaired" {
			found = append(found, f.GetObject().GetKind()+"/"+f.GetObject().GetName())
		}
	}
	assert.True(s.T, slices.Equal(found, []string{"InferencePool/" + pool}), "preflight warns of %v", found)
}

// revisionOf returns the revision in the name of a child.
func revisionOf(child string) string {
	name := child[:strings.LastIndex(child, "-")]
	return name[strings.LastIndex(name, "-")+1:]
}

// ended requires that the pool is as it was, after these selectors, and selects all leaders of a revision.
func (s *rolePools) ended(child string, selected ...string) {
	s.T.Helper()
	now := text.JSON(s.pool("model").Object["spec"])
	assert.Equal(s.T, s.user, now, "the user's pool is not as it was:\n%s\n%s", s.user, now)
	_, err := s.pools.Get(s.T.Context(), "model-canary", metav1.GetOptions{})
	assert.True(s.T, apierrors.IsNotFound(err), "the canary's pool is left: %v", err)
	s.restored()
	s.Eventually("the watch has seen it", func(context.Context) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if want := slices.Concat([]string{""}, selected, []string{""}); !slices.Equal(s.selected, want) {
			return fmt.Errorf("the user's pool selected %q, want %q", s.selected, want)
		}
		return nil
	})
	s.Eventually("no leader has the label", func(ctx context.Context) error {
		list, err := s.Kube.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "lockstep.dev/serving"})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d have", len(list.Items))
		}
		return err
	})
	s.selects("model", child, 4, 2)
}

// An InferencePool that selects the leaders of all roles keeps them in a release, as llm-d's picker needs: each of the two pools has those of one
// revision.
//
// Proves (test): An InferencePool that selects all roles of a DisaggregatedSet keeps them, one revision in each of the two pools.
func TestTrafficDisaggregatedPools(t *testing.T) {
	pinned := func(child string) string { return "name=model revision=" + revisionOf(child) }
	begin := func(s *rolePools, style pb.Style) (stable, update string) {
		policy := &pb.ReleasePolicy{Style: style, Batches: []string{"50%", "100%"}, Traffic: &pb.TrafficPolicy{
			StableService: s.StableService, HttpRoutes: []string{s.RouteName},
			InferencePool: &pb.InferencePoolPolicy{Name: "model", CanaryEndpointPicker: "canary-picker"},
		}}
		s.warnsOf(policy, "other")
		return s.beginWith(policy)
	}
	for name, intent := range map[string]pb.FinalizeIntent{
		"promoted": pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE, "aborted": pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK,
	} {
		t.Run(name, func(t *testing.T) {
			s := servePools(t, "decode")
			stable, update := begin(s, pb.Style_STYLE_CANARY)
			s.Upgrade(0)
			s.Weight(50)
			s.selects("model", stable, 4, 2)
			s.selects("model-canary", update, 2, 1)
			s.Upgrade(1)
			s.selects("model", stable, 4, 2)
			s.selects("model-canary", update, 4, 2)
			s.End(intent)
			if intent == pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK {
				s.ended(stable, pinned(stable))
			} else {
				s.ended(update, pinned(stable), pinned(update))
			}
		})
	}
	t.Run("replaced", func(t *testing.T) {
		s := servePools(t, "prefill")
		stable, update := begin(s, pb.Style_STYLE_PARTITION)
		s.Upgrade(0)
		s.selects("model", stable, 2, 1)
		s.selects("model-canary", update, 2, 1)
		s.End(pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)
		s.ended(stable, pinned(stable)+" serving=true")
	})
}
