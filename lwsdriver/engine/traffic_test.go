// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/fakes"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// The workload of a release in place was deleted: the driver that observed it restores the routes.
func TestDeletedWorkloadRestoresRoutesInPlace(t *testing.T) {
	stable := lwstest.RoutedInPlace(t, lwstest.Unchanged)
	core, routes := lwstest.RoutedObjects(t, lwstest.RoutedSetupInPlace(t, stable), 30, "vllm-1")
	b := &routedFixture{fixture: newFixtureOn(t, core, routes, stable), routes: routes}
	b.mirrorServices()
	b.look()
	require.NoError(t, b.Sets.Tracker().Delete(lws.GroupVersion.WithResource("leaderworkersets"), "default", "vllm"))
	require.NoError(t, b.Observer.Caches.Workloads.GetIndexer().Delete(stable))
	// As on its deletion: what is needed to restore the routes is not forgotten before.
	b.lose()
	b.run()
	b.queue.Add(lwstest.VLLM)
	b.mustGiveBack()
	b.eventually("the policy is forgotten", func() bool { return !b.policyKept() })
}

// A driver that only looks gives nothing back, and keeps nothing of it.
func TestPolicyInPlaceIsForgotten(t *testing.T) {
	b := newFixture(t, lwstest.RoutedInPlace(t, lwstest.Unchanged))
	b.locks.readOnly = true
	b.look()
	require.True(t, b.policyKept(), "the policy is not kept")
	b.lose()
	assert.False(t, b.policyKept(), "the policy of a deleted workload is kept forever")
}

// The workload was deleted: the routes are restored, then what its release added is deleted, with its finalizer or without.
func TestDeletedWorkloadRestoresRoutes(t *testing.T) {
	for _, held := range []bool{true, false} {
		t.Run(fmt.Sprintf("held %t", held), func(t *testing.T) {
			stable := lwstest.RoutedPhase(t, record.Progressing, nil)
			b := newRoutedFixture(t, stable, 30)
			if !held {
				b.canary.Finalizers = nil
				b.canary.DeletionTimestamp = &metav1.Time{Time: lwstest.Noon}
			}
			require.NoError(t, b.Sets.Tracker().Delete(lws.GroupVersion.WithResource("leaderworkersets"), "default", "vllm"))
			require.NoError(t, b.Sets.Tracker().Update(lws.GroupVersion.WithResource("leaderworkersets"), b.canary, "default"))
			b.mirrorServices()
			b.run()
			b.mustGiveBack()
		})
	}
}

// The workload is being deleted in the foreground, and a write on its routes is refused: a person must act, and the deletion
// does not wait for that.
func TestDeletionDoesNotWaitForRoutes(t *testing.T) {
	stable := lwstest.RoutedPhase(t, record.Progressing, nil)
	stable.DeletionTimestamp = &metav1.Time{Time: lwstest.Noon}
	b := newRoutedFixture(t, stable, 30)
	fakes.React(&b.routes.Fake, "patch", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{}, "llm", errors.New("a policy says no"))
	})
	b.run()
	b.queue.Add(lwstest.VLLM)
	b.eventually("what it added is let go of", func() bool {
		c, err := b.Sets.LeaderworkersetV1().LeaderWorkerSets("default").Get(t.Context(), b.canary.Name, metav1.GetOptions{})
		return err == nil && !slices.Contains(c.Finalizers, record.Finalizer)
	})
}

// The API server refuses the write of one route: the other one is restored.
func TestRefusedRouteKeepsNoOther(t *testing.T) {
	policy := lwstest.TrafficPolicy
	t.Cleanup(func() { lwstest.TrafficPolicy = policy })
	lwstest.TrafficPolicy = &pb.TrafficPolicy{StableService: "vllm", HttpRoutes: []string{"llm", "second"}}
	stable := lwstest.RoutedPhase(t, record.Progressing, nil)
	stable.DeletionTimestamp = &metav1.Time{Time: lwstest.Noon}
	b := newRoutedFixture(t, stable, 30)
	routes := b.routes.Resource(lwstest.GatewayAPI.WithResource("httproutes")).Namespace("default")
	route, err := routes.Get(t.Context(), "llm", metav1.GetOptions{})
	if err == nil {
		route.SetName("second")
		_, err = routes.Create(t.Context(), route, metav1.CreateOptions{})
	}
	require.NoError(t, err)
	fakes.React(&b.routes.Fake, "patch", "httproutes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		patch, _ := a.(clienttesting.PatchAction)
		return patch.GetName() == "llm", nil, apierrors.NewForbidden(schema.GroupResource{}, "llm", errors.New("a policy says no"))
	})
	b.run()
	b.queue.Add(lwstest.VLLM)
	b.eventually("the other route has no share", func() bool {
		route, err := routes.Get(t.Context(), "second", metav1.GetOptions{})
		return err == nil && !strings.Contains(fmt.Sprint(route.Object["spec"]), "vllm-canary")
	})
}

// Neither does it wait for a user to repair what the driver wrote: a namespace would never be deleted.
func TestDeletionDoesNotWaitForAnnotations(t *testing.T) {
	for _, gone := range []bool{false, true} {
		t.Run(fmt.Sprintf("gone %t", gone), func(t *testing.T) {
			stable := lwstest.StableWorkload() // its record is invalid
			stable.DeletionTimestamp = &metav1.Time{Time: lwstest.Noon}
			canary := lwstest.RoutedCanary(t, stable)
			canary.Annotations[record.TrafficAnnotation] = "{"
			objects, want := []*lws.LeaderWorkerSet{stable, canary}, "patch "+canary.Name
			if gone {
				objects, want = objects[1:], "delete "+canary.Name
			}
			b := newFixture(t, objects...)
			ctx, cancel := withoutWaiting(t)
			defer cancel()
			if b.workOn(ctx, lwstest.VLLM); !slices.Contains(b.Writes(), want) {
				t.Errorf("writes %q, want %s", b.Writes(), want)
			}
		})
	}
}

// mustGiveBack waits until nothing of the release is left on the user's objects.
func (b *routedFixture) mustGiveBack() {
	b.t.Helper()
	b.eventually("the route leads to the stable Service alone", func() bool {
		got, err := b.routes.Resource(lwstest.GatewayAPI.WithResource("httproutes")).Namespace("default").Get(b.t.Context(), "llm", metav1.GetOptions{})
		if err != nil {
			return false
		}
		raw, _ := json.Marshal(got.Object["spec"])
		return !strings.Contains(string(raw), "vllm-canary")
	})
	b.eventually("the isolation is removed", func() bool {
		got, err := b.Core.CoreV1().Services("default").Get(b.t.Context(), "vllm", metav1.GetOptions{})
		return err == nil && got.Spec.Selector[lws.SetNameLabelKey] == "" && got.Spec.Selector[lws.RevisionKey] == "" &&
			got.Annotations[traffic.IsolationAnnotation] == ""
	})
	b.eventually("the canary Service is deleted", func() bool {
		_, err := b.Core.CoreV1().Services("default").Get(b.t.Context(), "vllm-canary", metav1.GetOptions{})
		return err != nil
	})
}

// mirrorServices has writes of Services, which the generic client makes, show up in the cache, which the typed one fills.
func (b *routedFixture) mirrorServices() {
	fakes.React(&b.routes.Fake, "*", "services", func(a clienttesting.Action) (bool, runtime.Object, error) {
		switch t := a.(type) {
		case clienttesting.PatchAction:
			got, err := b.Core.CoreV1().Services("default").Patch(b.t.Context(), t.GetName(), t.GetPatchType(), t.GetPatch(), metav1.PatchOptions{})
			if err != nil {
				return true, nil, err
			}
			raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(got)
			return true, &unstructured.Unstructured{Object: raw}, err
		case clienttesting.DeleteAction:
			return true, nil, b.Core.CoreV1().Services("default").Delete(b.t.Context(), t.GetName(), metav1.DeleteOptions{})
		}
		return false, nil, nil
	})
}

// lose is what the deletion of default/vllm does.
func (b *fixture) lose() {
	b.Observer.Forget(lwstest.VLLM)
	b.forget(lwstest.VLLM)
}

// policyKept reports whether the driver knows the traffic policy of default/vllm, which was deleted.
func (b *fixture) policyKept() bool {
	b.t.Helper()
	return b.Observer.ObserveGone(lwstest.VLLM).Setup != nil
}
