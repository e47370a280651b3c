// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"errors"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/fakes"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// The canary's name is in use: by the canary itself, by an object of others, or by one that the caches don't show.
func TestCanaryExistsAlready(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*lws.LeaderWorkerSet)
		shown  time.Duration // when the caches show it; negative: never
		want   pb.ErrorReason
	}{
		{"canary", func(*lws.LeaderWorkerSet) {}, 0, pb.ErrorReason_ERROR_REASON_UNSPECIFIED},
		{"canary, shown later", func(*lws.LeaderWorkerSet) {}, time.Second, pb.ErrorReason_ERROR_REASON_UNSPECIFIED},
		{"another's", func(w *lws.LeaderWorkerSet) { w.Labels = nil }, 0, pb.ErrorReason_ERROR_REASON_NAME_TAKEN},
		{"another's, shown later", func(w *lws.LeaderWorkerSet) { w.Labels = nil }, time.Second, pb.ErrorReason_ERROR_REASON_NAME_TAKEN},
		{"never shown", func(*lws.LeaderWorkerSet) {}, -1, pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stable := lwstest.InPhase(t, record.Progressing)
				there := lwstest.Canary(t, stable)
				tt.change(there)
				b := newFixture(t, stable)
				require.NoError(t, b.Sets.Tracker().Add(there))
				if tt.shown >= 0 {
					time.AfterFunc(tt.shown, func() { b.cache(there); b.observer.Changes.Notify(observe.StableKey(there)) })
				}
				wrote, err := b.Apply(context.Background(), b.look(), plan.CreateCanary{Name: there.Name, Revision: "new"})
				got := drivererr.Reason(observe.ContractError(err))
				assert.True(t, !wrote && got == tt.want, "wrote %t, %v; want reason %s", wrote, err, tt.want)
				assert.Equal(t, tt.shown < 0, errors.Is(err, observe.ErrBehind), "%v is about the caches", err)
			})
		})
	}
}

// A deletion that arrives late deletes nothing that another driver has changed since, such as a canary that has been given requests.
func TestDeletesWhatWasObserved(t *testing.T) {
	stable := lwstest.InPhase(t, record.Progressing)
	canary := lwstest.Canary(t, stable)
	canary.ResourceVersion = "7"
	b := newFixture(t, stable, canary)
	var got metav1.DeleteOptions
	fakes.React(&b.Sets.Fake, "delete", "leaderworkersets", func(a clienttesting.Action) (bool, runtime.Object, error) {
		d, _ := a.(clienttesting.DeleteActionImpl)
		got = d.DeleteOptions
		return true, nil, apierrors.NewConflict(lws.GroupVersion.WithResource("leaderworkersets").GroupResource(), d.Name, errors.New("it is at 8"))
	})
	_, err := b.Apply(t.Context(), b.look(), plan.DeleteCanary{Name: canary.Name})
	assert.Equal(t, pb.ErrorReason_ERROR_REASON_CONFLICT, drivererr.Reason(observe.ContractError(err)), "%v is no lost race", err)
	want := &metav1.Preconditions{UID: &canary.UID, ResourceVersion: &canary.ResourceVersion}
	assert.Empty(t, cmp.Diff(want, got.Preconditions), "preconditions (-want +got)")
}

// A cache that does not show a write is behind, and stale until it does: no promotion rests on it meanwhile.
func TestCacheBehindIsStale(t *testing.T) {
	stable := lwstest.InPhase(t, record.Progressing)
	stable.ResourceVersion = "7"
	b := newFixture(t, stable)
	b.runSynced()
	require.NoError(t, b.observer.Freshness.Err())
	s := b.look()
	newer := s.StableObject.DeepCopy()
	newer.ResourceVersion = "99"
	fakes.React(&b.Sets.Fake, "patch", "leaderworkersets", func(clienttesting.Action) (bool, runtime.Object, error) { return true, newer, nil })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	next := *s.Record
	next.Workload = "other"
	_, err := b.Apply(ctx, s, plan.SetStable{Record: next})
	require.Error(t, err, "the write is not waited for")
	s = b.look()
	assert.True(t, len(s.Stale) == 1 && s.Stale[0].Resource == "leaderworkersets.leaderworkerset.x-k8s.io", "stale: %+v", s.Stale)
	b.cache(newer)
	assert.Empty(t, b.look().Stale, "stale although the cache has caught up")
}

// A workload that is deleted right after a write is not waited for, and makes no cache count as stale.
func TestDeletedAfterWrite(t *testing.T) {
	stable := lwstest.InPhase(t, record.Progressing)
	b := newFixture(t, stable)
	fakes.React(&b.Sets.Fake, "patch", "leaderworkersets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, stable, b.observer.Caches.Workloads.GetIndexer().Delete(stable)
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	s := b.look()
	next := *s.Record
	next.Workload = "other"
	wrote, err := b.Apply(ctx, s, plan.SetStable{Record: next})
	assert.True(t, wrote && err == nil, "wrote %t, %v", wrote, err)
}

// A record with metadata that the operator does not allow: no canary is created or changed with it.
func TestCanaryMetadataNotAllowed(t *testing.T) {
	stable := lwstest.InPhase(t, record.Progressing)
	canary := lwstest.Canary(t, stable)
	for name, action := range map[string]plan.Action{
		"create": plan.CreateCanary{Name: canary.Name, Revision: "new"}, "repair": plan.RepairCanary{Name: canary.Name},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t, stable, canary)
			s := b.look()
			s.Policy.LeaderLabels = map[string]string{"track": "canary"}
			wrote, err := b.Apply(context.Background(), s, action)
			got := drivererr.Reason(err)
			assert.True(t, !wrote && got == pb.ErrorReason_ERROR_REASON_RECORD_INVALID, "wrote %t, %v; want RECORD_INVALID", wrote, err)
			b.metadata = []string{"track"}
			_, err = b.Apply(context.Background(), s, action)
			assert.NotEqual(t, pb.ErrorReason_ERROR_REASON_RECORD_INVALID, drivererr.Reason(err), "allowed: %v", err)
		})
	}
}

// TestDropBoundsFinalizerKeepsSpec drops the finalizer of bounds that this driver can't read: what it would write of them is empty.
func TestDropBoundsFinalizerKeepsSpec(t *testing.T) {
	spec := map[string]any{"set": "llm", "stable": "a newer driver's"}
	object := &unstructured.Unstructured{Object: map[string]any{"spec": maps.Clone(spec)}}
	object.SetAPIVersion(observe.BoundsResource.GroupVersion().String())
	object.SetKind(observe.BoundsKind)
	object.SetNamespace("default")
	object.SetName("llm")
	object.SetUID("u")
	object.SetResourceVersion("7")
	object.SetFinalizers([]string{"other", record.Finalizer})
	generic := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
	if err := generic.Tracker().Create(observe.BoundsResource, object, "default"); err != nil { // Add would guess another plural
		t.Fatal(err)
	}
	b := newFixtureOn(t, fake.NewClientset(), generic)
	s := &observe.Snapshot{BoundsObject: &observe.BoundsObject{
		ObjectMeta: metav1.ObjectMeta{Name: "llm", UID: "u", ResourceVersion: "7", Finalizers: object.GetFinalizers()}, Problem: "stable is no object",
	}}
	s.Key = observe.KeyFor(observe.KindSet, "default", "llm")
	_, err := b.dropBoundsFinalizer(t.Context(), s)
	require.NoError(t, err)
	got, err := generic.Resource(observe.BoundsResource).Namespace("default").Get(t.Context(), "llm", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Empty(t, cmp.Diff(map[string]any{"spec": spec, "finalizers": []string{"other"}}, map[string]any{"spec": got.Object["spec"], "finalizers": got.GetFinalizers()}),
		"bounds (-want +got)")
}

// TestScaleChildPace scales children to numbers for which the role's percentages, which LWS copies to them, round to 0. LWS's webhook refuses those.
func TestScaleChildPace(t *testing.T) {
	for _, tt := range []struct {
		name, maxUnavailable string
		replicas             int
		want                 intstr.IntOrString
	}{
		{"rounds to 0", "25%", 1, intstr.FromInt32(1)},
		{"rounds to 1", "25%", 4, intstr.FromString("25%")},
		{"no groups", "25%", 0, intstr.FromString("25%")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			child := lwstest.StableWorkload()
			child.Spec.Replicas = ptr.To[int32](2)
			child.Spec.RolloutStrategy.RollingUpdateConfiguration = &lws.RollingUpdateConfiguration{
				Partition: ptr.To[int32](0), MaxUnavailable: intstr.FromString(tt.maxUnavailable), MaxSurge: intstr.FromString("0%"),
			}
			p := childPatch(observe.StripWorkload(child.DeepCopy()), tt.replicas)
			got, err := applied(t, p, child)
			require.NoError(t, err)
			if pace := got.Spec.RolloutStrategy.RollingUpdateConfiguration; int(*got.Spec.Replicas) != tt.replicas || pace.MaxUnavailable != tt.want {
				t.Errorf("%d groups, maxUnavailable %s", *got.Spec.Replicas, pace.MaxUnavailable.String())
			}
		})
	}
}
