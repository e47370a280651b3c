// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

func TestNewCanary(t *testing.T) {
	checkCanaryOfTests(t)
	s := &observe.Snapshot{Observation: plan.Observation{Key: lwstest.VLLM}, StableObject: lwstest.StableWorkload()}
	s.Record = &record.Record{Saved: lws.RollingUpdateConfiguration{
		Partition: ptr.To[int32](3), MaxUnavailable: intstr.FromString("50%"), MaxSurge: intstr.FromInt32(1),
	}}
	s.Policy = record.Policy{LeaderLabels: map[string]string{"canary": "true"}}
	before := s.StableObject.DeepCopy()
	c, err := newCanary(s, plan.CreateCanary{
		Name: "vllm-abc123", Revision: "abc12345", Replicas: 1, Target: &record.Target{Groups: "25%", At: lwstest.Noon},
	})
	require.NoError(t, err)
	assert.Empty(t, cmp.Diff(before, s.StableObject), "the cached object was modified")
	assert.Empty(t, cmp.Diff(map[string]string{
		"team": "serving", record.RoleLabel: record.RoleCanary, record.StableLabel: "vllm", record.RevisionLabel: "abc12345",
	}, c.Labels), "labels (-want +got)")
	assert.Empty(t, cmp.Diff(map[string]string{
		"owner": "ml", "leaderworkerset.sigs.k8s.io/exclusive-topology": "rack",
		record.TargetAnnotation: `{"groups":"25%","at":"2026-11-20T12:00:00Z"}`,
		record.OwnerAnnotation:  "default/stable",
	}, c.Annotations), "annotations (-want +got)")
	assert.True(t, slices.Equal(c.Finalizers, []string{record.Finalizer}) && metav1.GetControllerOf(c).UID == "stable",
		"finalizers %v, owners %v", c.Finalizers, c.OwnerReferences)
	want := lws.RollingUpdateConfiguration{
		Partition: ptr.To[int32](0), MaxUnavailable: intstr.FromInt32(1), MaxSurge: intstr.FromInt32(0),
	}
	assert.Empty(t, cmp.Diff(&want, c.Spec.RolloutStrategy.RollingUpdateConfiguration), "rolling update configuration (-want +got)")
	leader := c.Spec.LeaderWorkerTemplate.LeaderTemplate
	assert.True(t, leader != nil && leader.Labels["canary"] == "true" && leader.Labels["app"] == "vllm" && leader.Spec.Containers[0].Image == "vllm:2",
		"leader template %+v, want the workers' with the policy's label", leader)
	_, ok := c.Spec.LeaderWorkerTemplate.WorkerTemplate.Labels["canary"]
	assert.False(t, ok, "workers got the leader's label")
}

// What other tests take for a canary is one.
func checkCanaryOfTests(t *testing.T) {
	t.Helper()
	stable := lwstest.StableWorkload()
	want, err := newCanary(&observe.Snapshot{StableObject: stable}, plan.CreateCanary{
		Name: record.CanaryName(stable.Name, stable.Name, "new"), Revision: "new", Replicas: 1, Target: &record.Target{Groups: "25%", At: lwstest.Noon},
	})
	require.NoError(t, err)
	got := lwstest.Canary(t, stable)
	got.UID, got.Generation = "", 0
	assert.Empty(t, cmp.Diff(want, got), "lwstest.Canary (-want +got)")
}

// What a release adds to an adopted workload is found as ever, and what only looks like it is not.
func TestAddedToSuccessor(t *testing.T) {
	w := lwstest.HandedOver(t)
	s := &observe.Snapshot{Observation: plan.Observation{Key: observe.KeyOf(w)}, StableObject: w}
	s.Record, _ = record.DecodeRecord(w.Annotations[record.RecordAnnotation])
	c, err := newCanary(s, plan.CreateCanary{Name: s.CanaryName("newer"), Revision: "newer", Replicas: 1})
	require.NoError(t, err)
	b := newFixture(t, w, c)
	if stable, added := observe.AddedTo(c); c.Name != "vllm-newer" || !added || stable != w.Name || b.observer.Caches.IsAlias(lwstest.VLLM, observe.KeyOf(c)) {
		t.Errorf("%s is added to %q (%t)", c.Name, stable, added)
	}
	c = c.DeepCopy()
	c.Name = "copy"
	if b.cache(c); b.observer.Caches.IsAlias(lwstest.VLLM, observe.KeyOf(c)) || !b.observer.Caches.IsAlias(lwstest.VLLM, observe.KeyOf(w)) {
		t.Error("a copy takes the name")
	}
	_, added := observe.AddedTo(c)
	assert.False(t, added, "a copy is taken for an added one")
}

// TestRepairCanary checks that a repair restores the template, and nothing that the cache does not keep is lost.
func TestRepairCanary(t *testing.T) {
	const applied = `{"kind":"LeaderWorkerSet"}`
	stable := lwstest.InPhase(t, record.Progressing)
	live := lwstest.Canary(t, stable)
	live.Annotations[corev1.LastAppliedConfigAnnotation] = applied
	live.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers[0].Image = "edited"
	live.Spec.NetworkConfig = &lws.NetworkConfig{SubdomainPolicy: ptr.To(lws.SubdomainUniquePerReplica)}
	b := newFixture(t, stable, live)
	b.cache(observe.StripWorkload(live.DeepCopy()))
	wrote, err := b.Apply(t.Context(), b.look(), plan.RepairCanary{Name: live.Name})
	require.True(t, wrote && err == nil, "wrote %t, %v", wrote, err)
	if got := b.Writes(); !slices.Equal(got, []string{"patch " + live.Name}) { // config/base grants no update
		t.Errorf("writes %q", got)
	}
	got, err := b.Sets.LeaderworkersetV1().LeaderWorkerSets(live.Namespace).Get(t.Context(), live.Name, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Empty(t, cmp.Diff(record.TemplateOf(stable), record.TemplateOf(got)), "template (-want +got)")
	assert.Equal(t, applied, got.Annotations[corev1.LastAppliedConfigAnnotation], "last-applied")
}

// Bounds keep the traffic policy that they carry while the record, which has it, is missing.
func TestTrafficNoteWithoutRecord(t *testing.T) {
	s := &observe.Snapshot{BoundsObject: &observe.BoundsObject{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{record.TrafficAnnotation: "{}"}},
	}}
	s.Policy.Traffic = &traffic.Policy{StableService: "llm"}
	for _, kept := range []*record.Record{nil, {}} {
		s.Record = kept
		note, err := trafficNote(s)
		assert.True(t, err == nil && note == "{}", "record %v: they carry %q, %v", kept, note, err)
	}
}

// One request makes the second set a workload: nothing ties it to the other any more, and the template that was edited
// meanwhile comes with the hold.
func TestHandOver(t *testing.T) {
	for _, edited := range []bool{false, true} {
		stable := lwstest.InPhase(t, record.HandingOver)
		rec, err := record.DecodeRecord(lwstest.InPhase(t, record.Promoting).Annotations[record.RecordAnnotation])
		require.NoError(t, err)
		rec.Release.Phase, rec.Release.Successor, rec.Release.Groups = record.HandingOver, "vllm-new", 4
		stable = lwstest.WithRecord(t, stable, *rec)
		stable.Annotations[record.HistoryLimitAnnotation] = "3"
		green := lwstest.Canary(t, stable)
		if edited {
			stable.Spec.LeaderWorkerTemplate.WorkerTemplate.Labels = map[string]string{"edited": "true"}
		}
		b := newFixture(t, stable, green)
		var sent []operation
		b.FailPatches(func() error { return observe.ErrBehind })
		s := b.look()
		_, _ = b.Apply(t.Context(), s, plan.HandOver{Name: green.Name, Record: record.Record{Saved: rec.Saved, Workload: "vllm"}})
		for _, a := range b.Sets.Actions() {
			if p, ok := a.(interface{ GetPatch() []byte }); ok {
				require.NoError(t, json.Unmarshal(p.GetPatch(), &sent))
			}
		}
		done := map[string]any{}
		for _, o := range sent {
			if o.Op != "test" {
				done[o.Op+" "+o.Path] = o.Value
			}
		}
		want := []string{
			"add /metadata/annotations/lockstep.dev~1release", "remove /metadata/annotations/lockstep.dev~1target", "remove /metadata/annotations/lockstep.dev~1added-to",
			"add /metadata/annotations/lockstep.dev~1history-limit", "add /metadata/labels/lockstep.dev~1workload",
			"remove /metadata/labels/lockstep.dev~1role", "remove /metadata/labels/lockstep.dev~1stable", "remove /metadata/labels/lockstep.dev~1revision",
			"add /metadata/finalizers", "add /metadata/ownerReferences", "add /spec/rolloutStrategy/rollingUpdateConfiguration",
		}
		if edited {
			want = append(want, "add /spec/leaderWorkerTemplate")
		}
		for _, w := range want {
			_, ok := done[w]
			assert.True(t, ok, "edited %t: no %s", edited, w)
		}
		assert.Len(t, done, len(want), "edited %t: more than that is written", edited)
		o, ok := done["add /metadata/ownerReferences"].([]any)
		assert.True(t, ok && len(o) == 0, "owners %v are left", done["add /metadata/ownerReferences"])
		tests := slices.DeleteFunc(sent, func(o operation) bool { return o.Op != "test" })
		assert.GreaterOrEqual(t, len(tests), 5, "it is written whatever has changed: %v", tests)
	}
}
