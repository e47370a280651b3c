// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// foreign are LeaderWorkerSets that look as if a release had added them to vllm.
var foreign = []struct {
	name, reason string
	change       func(*lws.LeaderWorkerSet)
}{
	{"copy", "with everything but the name", func(w *lws.LeaderWorkerSet) { w.Name = "mine" }},
	{"labels", "without an owner", func(w *lws.LeaderWorkerSet) { w.Name, w.OwnerReferences = "mine", nil }},
	{"labels and name", "the name alone is no proof either", func(w *lws.LeaderWorkerSet) {
		w.OwnerReferences = nil
		delete(w.Annotations, record.OwnerAnnotation)
	}},
	{"copied from another namespace", "its annotation names that one", func(w *lws.LeaderWorkerSet) {
		w.OwnerReferences, w.Annotations[record.OwnerAnnotation] = nil, "other/stable"
	}},
	{"not controlled", "an owner that is no controller", func(w *lws.LeaderWorkerSet) { w.OwnerReferences[0].Controller = nil }},
	{"other owner", "owned by another workload", func(w *lws.LeaderWorkerSet) { w.OwnerReferences[0].Name = "other" }},
	{"other kind", "owned by another kind", func(w *lws.LeaderWorkerSet) { w.OwnerReferences[0].Kind = "DisaggregatedSet" }},
	{"other group", "of another API", func(w *lws.LeaderWorkerSet) { w.OwnerReferences[0].APIVersion = "apps/v1" }},
	{"bad group", "of no API", func(w *lws.LeaderWorkerSet) { w.OwnerReferences[0].APIVersion = "a/b/c" }},
	{"no role", "the label was removed", func(w *lws.LeaderWorkerSet) { delete(w.Labels, record.RoleLabel) }},
	{"other revision", "the label was changed", func(w *lws.LeaderWorkerSet) { w.Labels[record.RevisionLabel] = "other" }},
}

// A LeaderWorkerSet that no release added is never scaled, deleted or let go of, whatever its labels say, nor after the workload was deleted. Its
// own deletion must not hang on a finalizer that came with the copied manifest.
func TestForeignIsNotAdded(t *testing.T) {
	for _, tt := range foreign {
		t.Run(tt.name, func(t *testing.T) {
			worked := func(w *lws.LeaderWorkerSet, key types.NamespacedName, workloads ...*lws.LeaderWorkerSet) (*fixture, []string) {
				tt.change(w)
				b := newFixture(t, append(workloads, w)...)
				b.workOn(t.Context(), key)
				// A cache that stands still has the write repeated.
				return b, slices.DeleteFunc(slices.Compact(b.Writes()), func(write string) bool { return !strings.HasSuffix(write, " "+w.Name) })
			}
			for _, phase := range []record.Phase{record.Progressing, record.CleaningUp, record.Promoted} {
				stable := lwstest.InPhase(t, phase)
				if b, got := worked(lwstest.Canary(t, stable), lwstest.VLLM, stable); len(got) > 0 || len(b.look().Added) > 0 {
					t.Errorf("%s, %s: it counts as added, or is written: %q", tt.reason, phase, got)
				}
			}
			_, got := worked(lwstest.Canary(t, lwstest.StableWorkload()), lwstest.VLLM)
			assert.Empty(t, got, "%s, of a deleted workload: %q", tt.reason, got)
			w := lwstest.Canary(t, lwstest.StableWorkload())
			tt.change(w)
			w.DeletionTimestamp = &metav1.Time{Time: lwstest.Noon}
			b, got := worked(w, observe.KeyOf(w))
			require.True(t, slices.Equal(got, []string{"patch " + w.Name}), "%s, deleted: %q", tt.reason, got)
			now, err := b.Sets.LeaderworkersetV1().LeaderWorkerSets(w.Namespace).Get(t.Context(), w.Name, metav1.GetOptions{})
			assert.False(t, err == nil && slices.Contains(now.Finalizers, record.Finalizer), "%s: the finalizer is still there", tt.reason)
		})
	}
}

func TestAddedIsDeletedWhenCleaningUp(t *testing.T) {
	stable := lwstest.InPhase(t, record.CleaningUp)
	b := newFixture(t, stable, lwstest.Canary(t, stable))
	got := b.look().Added
	require.True(t, len(got) == 1 && got[0].Name == "vllm-new" && got[0].Carries == "new" && got[0].HasFinalizer, "added are %+v", got)
	ctx, cancel := withoutWaiting(t)
	defer cancel()
	b.workOn(ctx, lwstest.VLLM)
	if got := b.Writes(); !slices.Equal(got, []string{"delete vllm-new"}) {
		t.Errorf("writes %q", got)
	}
}

// A canary whose owner reference Kubernetes removed (--cascade=orphan) is deleted, by a driver that starts later, too.
func TestOrphanIsDeleted(t *testing.T) {
	w := lwstest.Canary(t, lwstest.StableWorkload())
	w.OwnerReferences = nil
	b := newFixture(t, w)
	ctx, cancel := withoutWaiting(t)
	defer cancel()
	b.workOn(ctx, observe.StableKey(w))
	got := b.Writes()
	assert.True(t, slices.Equal(got, []string{"delete " + w.Name}), "writes %q", got)
}

// What a release added is driven as a part of its workload only: an event may name it alone, such as that of a pod which the driver
// observes before the workload when it starts.
func TestAddedIsNoWorkload(t *testing.T) {
	stable := lwstest.InPhase(t, record.Progressing)
	w := lwstest.Canary(t, stable)
	w.DeletionTimestamp = &metav1.Time{Time: lwstest.Noon}
	b := newFixture(t, stable, w)
	b.workOn(t.Context(), observe.KeyOf(w))
	assert.Empty(t, b.Writes(), "writes")
}

// A driver finds an autoscaler that is held for a deleted workload, or for a release that is over.
func TestAutoscalersLeftHeld(t *testing.T) {
	for name, objects := range map[string][]*lws.LeaderWorkerSet{
		"workload-deleted": nil,
		"at-rest":          {lwstest.WithRecord(t, lwstest.StableWorkload(), record.Record{Saved: record.Native(record.Hold())})},
		"unmanaged":        {lwstest.Unrecorded()},
	} {
		t.Run(name, func(t *testing.T) {
			core := fake.NewClientset(lwstest.HPA("vllm", lwstest.HeldFor("vllm")))
			b := newFixtureOn(t, core, lwstest.NoRoutes(), objects...)
			b.run()
			b.eventually("it is released", func() bool {
				h, err := core.AutoscalingV2().HorizontalPodAutoscalers(lwstest.VLLM.Namespace).Get(t.Context(), "scale", metav1.GetOptions{})
				return err == nil && h.Annotations[autoscaler.NoteAnnotation] == "" && *h.Spec.Behavior.ScaleUp.SelectPolicy == autoscalingv2.MaxChangePolicySelect
			})
		})
	}
}

// What scales the successor of a workload that was to be handed over scales that workload again after the successor was deleted.
func TestAutoscalersReturnAfterFailedHandover(t *testing.T) {
	rec, err := record.DecodeRecord(lwstest.InPhase(t, record.Promoting).Annotations[record.RecordAnnotation])
	require.NoError(t, err)
	successor := record.CanaryName("vllm", "vllm", rec.Release.UpdateRevision)
	rec.Release.Phase, rec.Release.Successor, rec.Release.Groups = record.HandingOver, successor, 2
	w := lwstest.WithRecord(t, lwstest.InPhase(t, record.HandingOver), *rec)
	core := fake.NewClientset(lwstest.HPA(successor), lwstest.Revision(t, w, rec.Release.UpdateRevision))
	b := newFixtureOn(t, core, lwstest.NoRoutes(), w)
	b.run()
	b.eventually("it scales the user's workload", func() bool {
		h, err := core.AutoscalingV2().HorizontalPodAutoscalers(lwstest.VLLM.Namespace).Get(t.Context(), "scale", metav1.GetOptions{})
		return err == nil && h.Spec.ScaleTargetRef.Name == "vllm"
	})
}
