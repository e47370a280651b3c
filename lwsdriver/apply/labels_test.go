// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/fakes"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// One action labels one pod, the leader first, and the action is asked for until all are; the pod of a group that is at
// another revision by now is left alone.
func TestLabelGroup(t *testing.T) {
	core, stable, canary := lwstest.LabelledRelease(t, 3)
	b := newFixtureOn(t, core, lwstest.NoRoutes(), stable, canary)
	b.run()
	b.eventually("caches are filled", b.observer.Caches.Synced)
	set := record.CanaryName("vllm", "vllm", "new")
	s := b.look()
	a := plan.LabelGroup{Name: set, Group: 0, Revision: "new", Labels: plan.RolloutLabels{ID: "k1", Batch: 1}}
	other := a
	other.Revision = "newer"
	wrote, err := b.Apply(t.Context(), s, other)
	assert.True(t, !wrote && err == nil, "labelled a group that has moved on: %t, %v", wrote, err)
	for i, want := range []bool{true, true, true, false} {
		wrote, err := b.Apply(t.Context(), s, a)
		require.True(t, wrote == want && err == nil, "write %d: %t, %v", i, wrote, err)
		assert.False(t, i == 0 && b.observer.Caches.Pod(observe.KeyOf(&metav1.ObjectMeta{Namespace: "default", Name: set + "-0"})).Rollout != a.Labels,
			"the leader was not the first")
	}
	pods, err := b.Core.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, p := range pods.Items {
		assert.True(t, p.Labels[record.RolloutIDLabel] == "k1" && p.Labels[record.RolloutBatchLabel] == "1", "%s has labels %v", p.Name, p.Labels)
	}
	labels := b.look().Added[0].Groups[0].Rollouts
	assert.True(t, cmp.Equal(labels, []plan.RolloutLabels{a.Labels}), "the group is seen as %v", labels)
}

// Only the observed pod is labelled, and after a lost race the caller waits for the cache.
func TestMarkLeader(t *testing.T) {
	stable := lwstest.RoutedPhase(t, record.Progressing, nil)
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "x", errors.New("uid"))
	for _, tc := range []struct {
		name    string
		answer  error
		shows   bool // the cache, what happened
		wrote   bool
		problem bool
	}{
		{"labelled", nil, true, true, false},
		{"another pod", conflict, true, false, false},
		{"deleted", apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "x"), true, false, false},
		{"refused", apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "x", nil), false, false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			core, routes, canary := lwstest.RoutedRelease(t, stable, 0)
			b := newFixtureOn(t, core, routes, stable, canary)
			leader := lwstest.CanaryPod(canary.Name, "0")
			delete(leader.Labels, record.ServingLabel)
			leader.ResourceVersion = "7"
			b.showPod(leader)
			var sent string
			fakes.React(&b.Core.Fake, "patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
				sent = string(a.(clienttesting.PatchAction).GetPatch()) //nolint:forcetypeassert // a patch
				next := leader.DeepCopy()
				next.ResourceVersion = "8"
				next.Labels[record.ServingLabel] = record.Serving
				if tc.answer != nil {
					next.UID = "next"
				}
				if tc.shows {
					time.AfterFunc(50*time.Millisecond, func() { b.showPod(next); b.observer.Changes.Notify(lwstest.VLLM) })
				}
				return true, next, tc.answer
			})
			began := time.Now()
			wrote, err := b.Apply(t.Context(), &observe.Snapshot{Observation: plan.Observation{Key: lwstest.VLLM}}, plan.LabelServing{Name: canary.Name, Leader: leader.Name, Serves: true})
			assert.True(t, wrote == tc.wrote && (err != nil) == tc.problem, "wrote %t, %v", wrote, err)
			assert.False(t, tc.shows && time.Since(began) < 50*time.Millisecond, "did not wait for the cache")
			version := `"resourceVersion":"` + leader.ResourceVersion + `"` // a late request leads none to a leader that was drained since
			for _, part := range []string{`"uid":"` + string(leader.UID) + `"`, version, record.ServingLabel, record.Serving} {
				assert.Contains(t, sent, part)
			}
		})
	}
}
