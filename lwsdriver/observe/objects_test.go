// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/informer"
	"github.com/lockstep-rollouts/lockstep/plugin/informer/guard"
)

func TestCanaryClaimsAreDeletedWithIt(t *testing.T) {
	w := lwstest.StableWorkload()
	assert.Nil(t, CanaryTemplate(w, record.Policy{}).PersistentVolumeClaimRetentionPolicy,
		"a template without claims got a retention policy, and so a revision of its own")
	w.Spec.LeaderWorkerTemplate.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "cache"}}}
	got := CanaryTemplate(w, record.Policy{}).PersistentVolumeClaimRetentionPolicy
	assert.True(t, got != nil && got.WhenDeleted == appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
		"retention policy %+v: the canary's claims would be left behind", got)
}

// The last field manager of a template changed it.
func TestChangedBy(t *testing.T) {
	at := func(minute int) *metav1.Time {
		return &metav1.Time{Time: lwstest.Noon.Add(-time.Duration(minute) * time.Minute)}
	}
	fields := func(text string) *metav1.FieldsV1 { return &metav1.FieldsV1{Raw: []byte(text)} }
	w := lwstest.StableWorkload()
	w.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "helm", Time: at(9), FieldsV1: fields(`{"f:spec":{"f:leaderWorkerTemplate":{}}}`)},
		{Manager: "kubectl-edit", Time: at(5), FieldsV1: fields(`{"f:spec":{"f:leaderWorkerTemplate":{"f:size":{}}}}`)},
		{Manager: "creator", Time: at(5), FieldsV1: fields(`{"f:spec":{"f:leaderWorkerTemplate":{"f:size":{},"f:workerTemplate":{}}}}`)},
		{Manager: "lockstep", Time: at(1), FieldsV1: fields(`{"f:spec":{"f:rolloutStrategy":{}}}`)},
		{Manager: "none", Time: at(0)},
	}
	got := changedBy(StripWorkload(w))
	assert.True(t, got == "kubectl-edit" && len(w.ManagedFields) == 1 && w.ManagedFields[0].FieldsV1 == nil, "%q, of %v", got, w.ManagedFields)
	got = changedBy(lwstest.StableWorkload())
	assert.Empty(t, got, "%q has changed a template without managers", got)
}

// Who changed the rolling update configuration after Lockstep is known, also of bounds, and of children unless it created them.
func TestOverwrittenBy(t *testing.T) {
	at := func(second int) *metav1.Time {
		return &metav1.Time{Time: lwstest.Noon.Add(time.Duration(second) * time.Second)}
	}
	rolling := &metav1.FieldsV1{Raw: []byte(`{"f:spec":{"f:rolloutStrategy":{"f:rollingUpdateConfiguration":{"f:partition":{}}}}}`)}
	for _, tt := range []struct {
		name       string
		first, own int
		want       string
	}{
		{"another client after Lockstep", 2, 1, "kustomize-controller"},
		{"in the same second", 1, 1, "kustomize-controller"},
		{"Lockstep repaired it", 1, 2, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := lwstest.StableWorkload()
			w.ManagedFields = []metav1.ManagedFieldsEntry{
				{Manager: "kustomize-controller", Time: at(tt.first), FieldsV1: rolling},
				{Manager: record.FieldManager, Time: at(tt.own), FieldsV1: rolling},
			}
			bounds := &unstructured.Unstructured{}
			bounds.SetManagedFields(w.ManagedFields)
			b := stripBounds(bounds)
			got := managerOf(StripWorkload(w), rollingField).Manager
			assert.True(t, got == tt.want && b.ChangedBy == tt.want, "%q, and %+v", got, b)
		})
	}
}

// TestRevisionMatchesTemplate: a ControllerRevision written as LWS v0.9.0 writes it (pkg/utils/revision getPatch) has
// the digest of the spec that it was made from, and of no other.
func TestRevisionMatchesTemplate(t *testing.T) {
	w := lwstest.StableWorkload()
	cr := lwstest.Revision(t, w, "abc")
	cr.Revision = 3
	v := stripRevision(cr)
	require.True(t, v.hash == "abc" && v.set == "vllm" && v.owner == w.UID && v.number == 3, "view is %+v", v)
	same, err := digestOf(w.Spec.LeaderWorkerTemplate, nil)
	assert.True(t, err == nil && v.digest == same, "the revision does not match the template that it was made from (%v)", err)
	w.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers[0].Image = "vllm:3"
	other, err := digestOf(w.Spec.LeaderWorkerTemplate, nil)
	assert.True(t, err == nil && v.digest != other, "the revision matches another template (%v)", err)
}

// After a deletion that orphans, LWS continues to use the revisions of a workload that is recreated, and never owns them again.
func TestOrphanedRevisionsAreThoseOfTheRecreatedWorkload(t *testing.T) {
	w := lwstest.StableWorkload()
	for _, tt := range []struct {
		name   string
		owners []metav1.OwnerReference
		want   []string
	}{
		{"orphaned", nil, []string{"a"}},
		{"of the workload before, which garbage collection deletes", []metav1.OwnerReference{{UID: "before", Controller: ptr.To(true)}}, []string{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newFixture(t, w)
			r := lwstest.Revision(t, w, "a")
			r.OwnerReferences = tt.owners
			lwstest.UpdateCache(t, b.Caches.revisions, stripRevision(r))
			got := b.Caches.recordedRevisions(w)
			assert.True(t, slices.Equal(got, tt.want), "the revisions of the workload are %q, not %q", got, tt.want)
		})
	}
}

// What is not this workload's is none of its history.
func TestHistoryOfOthers(t *testing.T) {
	stranger := lwstest.HistoryRevision(t, plan.Entry{Revision: "x", Number: 1}, "vllm:2")
	stranger.Name, stranger.OwnerReferences[0].UID = "stranger", "older"
	orphan := lwstest.HistoryRevision(t, plan.Entry{Revision: "y", Number: 1}, "vllm:2")
	orphan.Name, orphan.OwnerReferences = "orphan", nil
	other := lwstest.HistoryRevision(t, plan.Entry{Revision: "z", Number: 1}, "vllm:2")
	other.Name, other.Labels[record.StableLabel] = "other", "sglang"
	b := restingFixture(t, stranger, orphan, other, lwstest.HistoryRevision(t, plan.Entry{Revision: "new", Number: 1}, "vllm:2"))
	b.runSynced()
	got := b.kept()
	assert.True(t, slices.Equal(got, []string{"1 new vllm:2 "}), "the history is %q", got)
}

// kept is the history, from the caches.
func (b *fixture) kept() []string {
	var all []string
	for _, v := range b.History.Of(lwstest.VLLM, "stable") {
		all = append(all, fmt.Sprintf("%d %s %s %s%s", v.Entry.Number, v.Entry.Revision, v.Images[0][len("server="):], v.Entry.Outcome, v.Entry.Problem))
	}
	return all
}

// A pod for which the informer's transform panics makes its group unready, and the other pods are stored.
func TestPoisonousPod(t *testing.T) {
	b := newFixture(t, lwstest.Unrecorded())
	require.NoError(t, b.Caches.Pods.SetTransform(guard.Transform(informer.Transform(func(p *corev1.Pod) *Pod {
		if p.Name == "vllm-1" {
			panic("a defect")
		}
		return NewPod(p)
	}), unreadablePod)))
	b.runSynced()
	for _, name := range []string{"vllm-0", "vllm-1"} {
		pod := lwstest.Pod(name, func(p *corev1.Pod) { p.Labels[lws.GroupIndexLabelKey] = strings.TrimPrefix(name, "vllm-") })
		_, err := b.Core.CoreV1().Pods(lwstest.VLLM.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	var s *Snapshot
	// Their events come after the pods are in the cache.
	b.eventually("both groups are observed", func() bool { s = b.look(); return len(s.Stable.Groups) == 2 })
	g := s.Stable.Groups[1]
	assert.True(t, !g.Ready && g.Reason == "Unreadable" && g.Pod == "vllm-1" && strings.Contains(g.Message, "log"), "its group is %+v", g)
	g = s.Stable.Groups[0]
	assert.False(t, g.Reason == "Unreadable" || g.Revision == "", "the other group is %+v", g)
}

// A handover makes another object the workload while a host waits for changes of it.
func TestNotifySignalsAliases(t *testing.T) {
	stable := lwstest.InPhase(t, record.Promoting)
	b := newFixture(t, stable)
	changed, stop := b.Changes.Subscribe(lwstest.VLLM)
	defer stop()
	signalled := func(key types.NamespacedName) bool {
		b.Notify(key)
		select {
		case <-changed:
			return true
		default:
			return false
		}
	}
	green := types.NamespacedName{Namespace: lwstest.VLLM.Namespace, Name: "vllm-new"}
	assert.True(t, signalled(lwstest.VLLM) && !signalled(green), "before the handover: want changes of default/vllm only")
	require.NoError(t, b.Caches.Workloads.GetIndexer().Delete(stable))
	b.cache(lwstest.HandedOver(t))
	assert.True(t, signalled(green) && signalled(lwstest.VLLM), "after the handover: want changes of either object")
}
