// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// A workload that claims to be the second set of a release counts only if its owner is this very workload.
func TestForgedCanary(t *testing.T) {
	stable := lwstest.InPhase(t, record.Progressing)
	for _, tt := range []struct {
		name   string
		change func(*lws.LeaderWorkerSet)
		added  int
		counts bool
	}{
		{"created by the driver", func(*lws.LeaderWorkerSet) {}, 1, true},
		{"owner of another UID", func(w *lws.LeaderWorkerSet) { w.OwnerReferences[0].UID = "other" }, 1, false},
		{"no owner", func(w *lws.LeaderWorkerSet) { w.OwnerReferences = nil }, 1, false},
		{"no owner, no finalizer", func(w *lws.LeaderWorkerSet) { w.OwnerReferences, w.Finalizers = nil, nil }, 0, false},
		{"another name", func(w *lws.LeaderWorkerSet) { w.Name = "mine" }, 0, false},
	} {
		set := lwstest.Canary(t, stable)
		metav1.SetMetaDataAnnotation(&set.ObjectMeta, record.OwnerAnnotation, stable.Namespace+"/"+string(stable.UID))
		tt.change(set)
		s := newFixture(t, stable, set).look()
		assert.False(t, len(s.Added) != tt.added || tt.added == 1 && s.Added[0].Orphaned == tt.counts, "%s: added workloads %+v", tt.name, s.Added)
	}
}

// A LeaderWorkerSet that is labelled as a child of a DisaggregatedSet counts only if that very set controls it. Bounds count on the same
// condition. What only has the name of a child is none, and no bounds hold it.
func TestForgedChild(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name            string
		change          func(*lws.LeaderWorkerSet)
		child, namesake bool
	}{
		{"created by LWS", func(*lws.LeaderWorkerSet) {}, true, false},
		{"owner of another UID", func(w *lws.LeaderWorkerSet) { w.OwnerReferences[0].UID = "other" }, false, false},
		{"no owner", func(w *lws.LeaderWorkerSet) { w.OwnerReferences = nil }, false, false},
		{"no owner, and the name of a child", func(w *lws.LeaderWorkerSet) { w.OwnerReferences, w.Name = nil, "llm-0123abcd-prefill" }, false, false},
		{"an owner that is no controller", func(w *lws.LeaderWorkerSet) { w.OwnerReferences[0].Controller = nil }, false, false},
		{"owner of another kind", func(w *lws.LeaderWorkerSet) { w.OwnerReferences[0].Kind = "Deployment" }, false, false},
		{"owner of another group", func(w *lws.LeaderWorkerSet) { w.OwnerReferences[0].APIVersion = "apps/v1" }, false, false},
		{"label of another set", func(w *lws.LeaderWorkerSet) { w.Labels[disaggregated.SetNameLabelKey] = "other" }, false, false},
		{"no labels, and the name of a child", func(w *lws.LeaderWorkerSet) {
			w.Labels, w.OwnerReferences, w.Name = nil, nil, "llm-1-0123abcd-prefill"
		}, false, true},
	} {
		core, generic := setsServed(true, llm("Static"))
		w := childOf5()
		tt.change(w)
		b := newFixtureOn(t, core, generic, w)
		b.run()
		b.eventually(tt.name, func() bool {
			s, err := b.Observe(KeyFor(KindSet, lwstest.VLLM.Namespace, "llm"))
			return err == nil && (len(s.Children) == 1) == tt.child && (len(s.Namesakes) == 1) == tt.namesake && b.Caches.Synced() && s.Bounds == nil
		})
	}
}

// A handover to a workload that no release added changes nothing. Removing labels from the second set does not make it a workload of its own: the
// user's would be deleted for it.
func TestForgedSuccessor(t *testing.T) {
	stable := lwstest.InPhase(t, record.Promoting)
	rec, err := record.DecodeRecord(stable.Annotations[record.RecordAnnotation])
	require.NoError(t, err)
	rec.Release.Phase, rec.Release.Groups = record.HandingOver, 4
	with := func(r record.Record) func(*lws.LeaderWorkerSet) {
		return func(w *lws.LeaderWorkerSet) {
			w.Labels, w.OwnerReferences = nil, nil
			lwstest.WithRecord(t, w, r)
		}
	}
	for _, tt := range []struct {
		name, successor    string
		change             func(*lws.LeaderWorkerSet)
		succeeded, foreign bool
	}{
		{"as it was added", "vllm-new", func(*lws.LeaderWorkerSet) {}, false, false},
		{"without one label", "vllm-new", func(w *lws.LeaderWorkerSet) { delete(w.Labels, record.RoleLabel) }, false, false},
		{"without labels", "vllm-new", func(w *lws.LeaderWorkerSet) { w.Labels = nil }, false, false},
		{"with a record, and an owner", "vllm-new", func(w *lws.LeaderWorkerSet) {
			w.Labels = nil
			lwstest.WithRecord(t, w, record.Record{UID: "canary", Predecessor: lwstest.VLLM.Name})
		}, false, false},
		{"another workload", "vllm-new", func(w *lws.LeaderWorkerSet) { w.Labels, w.OwnerReferences = nil, nil }, false, true},
		{"a workload that does not exist", "ghost", func(*lws.LeaderWorkerSet) {}, false, true},
		{"a copied record", "vllm-new", with(record.Record{UID: "copied", Predecessor: lwstest.VLLM.Name}), false, true},
		{"handed over", "vllm-new", with(record.Record{UID: "canary", Predecessor: lwstest.VLLM.Name}), true, false},
	} {
		rec.Release.Successor = tt.successor
		set := lwstest.Canary(t, stable)
		tt.change(set)
		s := newFixture(t, lwstest.WithRecord(t, lwstest.InPhase(t, record.Promoting), *rec), set).look()
		assert.True(t, s.SuccessorForeign == tt.foreign && s.Succeeded == tt.succeeded,
			"%s: foreign %t, succeeded %t", tt.name, s.SuccessorForeign, s.Succeeded)
		d := lwstest.Decide(t, s.Observation)
		_, deletes := d.Action.(plan.DeleteStable)
		assert.Equal(t, tt.succeeded, deletes, "%s: the user's workload is deleted: %t", tt.name, deletes)
		assert.Equal(t, tt.foreign, d.State == pb.State_STATE_FAILED && d.Reason == traffic.ReasonRecordInvalid, "%s: %+v", tt.name, d)
	}
}

// A workload that claims another one's alias does not get its calls, even if it names the other one as its successor.
func TestForgedAlias(t *testing.T) {
	green := lwstest.HandedOver(t) // known as vllm
	evil := lwstest.StableWorkload()
	evil.Name, evil.UID = "evil", "evil"
	evil.Labels = map[string]string{record.WorkloadLabel: lwstest.VLLM.Name}
	forged := lwstest.InPhase(t, record.Promoting)
	rec, err := record.DecodeRecord(forged.Annotations[record.RecordAnnotation])
	require.NoError(t, err)
	rec.UID, rec.Workload, rec.Release.Phase = evil.UID, lwstest.VLLM.Name, record.HandingOver
	rec.Release.Successor, rec.Release.Groups = green.Name, 4
	lwstest.WithRecord(t, evil, *rec)
	b := newFixture(t, green, evil)
	got := b.Caches.Resolve(lwstest.VLLM)
	assert.NotEqual(t, types.NamespacedName{Namespace: evil.Namespace, Name: evil.Name}, got, "calls for %s reach %s", lwstest.VLLM, got)
}
