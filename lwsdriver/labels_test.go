// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func rollout(id, batch string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Labels[record.RolloutIDLabel], p.Labels[record.RolloutBatchLabel] = id, batch
	}
}

func terminating(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: noon} }

func at(revision string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[lws.RevisionKey] = revision }
}

func TestGroupMarks(t *testing.T) {
	mark := func(id string, batch int) plan.RolloutMark { return plan.RolloutMark{ID: id, Batch: batch} }
	for _, tt := range []struct {
		name, reason string
		pods         []*corev1.Pod
		want         []plan.RolloutMark
	}{
		{"none", "", []*corev1.Pod{testPod("vllm-1"), testPod("vllm-1-1")}, nil},
		{"all", "", []*corev1.Pod{testPod("vllm-1", rollout("k", "2")), testPod("vllm-1-1", rollout("k", "2"))}, []plan.RolloutMark{mark("k", 2)}},
		{"some", "", []*corev1.Pod{testPod("vllm-1", rollout("k", "2")), testPod("vllm-1-1")}, []plan.RolloutMark{{}, mark("k", 2)}},
		{
			"different", "", []*corev1.Pod{testPod("vllm-1", rollout("k", "2")), testPod("vllm-1-1", rollout("j", "2"))},
			[]plan.RolloutMark{mark("j", 2), mark("k", 2)},
		},
		{"no number", "somebody's own value", []*corev1.Pod{testPod("vllm-1", rollout("k", "two"))}, []plan.RolloutMark{mark("k", -1)}},
		{"no plain number", "it must be as we write it", []*corev1.Pod{testPod("vllm-1", rollout("k", "02"))}, []plan.RolloutMark{mark("k", -1)}},
		{
			"terminating", "a pod that goes has no say", []*corev1.Pod{testPod("vllm-1", rollout("k", "2")), testPod("vllm-1-1", terminating)},
			[]plan.RolloutMark{mark("k", 2)},
		},
		{
			"left over", "nor has a worker of the group before", []*corev1.Pod{testPod("vllm-1", rollout("k", "2")), testPod("vllm-1-1", at("r0"))},
			[]plan.RolloutMark{mark("k", 2)},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newGroupBed(t)
			for _, p := range tt.pods {
				b.put(p)
			}
			if diff := cmp.Diff(tt.want, b.group1(0, 0).Marks); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, diff)
			}
		})
	}
}

// labelledBed is a driver in mid-release of a rollout whose canary has one group, of size pods, that is ready.
func labelledBed(t *testing.T, size int) *bed {
	t.Helper()
	policy, err := record.EncodePolicy(&pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"25%", "100%"}, RolloutId: "k1"})
	if err != nil {
		t.Fatal(err)
	}
	stable := withRecord(t, stableWorkload(), record.Record{Saved: record.Native(record.Hold()), Release: &record.Release{
		ID: "r1", Policy: policy, StableRevision: "old", UpdateRevision: "new", Phase: record.Progressing, StartedAt: noon, PhaseAt: noon,
	}})
	canary := canaryOf(t, stable)
	core := fake.NewClientset(recorded(t, stable, "new"), recorded(t, canary, "new"))
	for i := range size {
		name := canary.Name + "-0"
		if i > 0 {
			name += fmt.Sprintf("-%d", i)
		}
		if err := core.Tracker().Add(canaryGroupPod(canary.Name, name, i, size)); err != nil {
			t.Fatal(err)
		}
	}
	return newBedOn(t, core, noRoutes(), stable, canary)
}

func canaryGroupPod(set, name string, worker, size int) *corev1.Pod {
	return testPod(name, func(p *corev1.Pod) {
		p.Labels[lws.SetNameLabelKey], p.Labels[lws.GroupIndexLabelKey] = set, "0"
		p.Labels[lws.WorkerIndexLabelKey], p.Labels[lws.RevisionKey] = fmt.Sprint(worker), "new"
		p.Annotations[lws.SizeAnnotationKey] = fmt.Sprint(size)
	})
}

// One action labels one pod, the leader first, and the action is asked for until all are; the pod of a group that is at
// another revision by now is left alone.
func TestLabelGroup(t *testing.T) {
	b := labelledBed(t, 3)
	b.engine.config.ReadOnly = true // the writes are the test's
	b.run()
	b.eventually("caches are filled", b.Synced)
	set := record.CanaryName("vllm", "vllm", "new")
	s := b.look()
	a := plan.LabelGroup{Name: set, Group: 0, Revision: "new", Mark: plan.RolloutMark{ID: "k1", Batch: 1}}
	other := a
	other.Revision = "newer"
	if wrote, err := b.engine.Applier.Apply(t.Context(), s, other); wrote || err != nil {
		t.Errorf("labelled a group that has moved on: %t, %v", wrote, err)
	}
	for i, want := range []bool{true, true, true, false} {
		wrote, err := b.engine.Applier.Apply(t.Context(), s, a)
		if wrote != want || err != nil {
			t.Fatalf("write %d: %t, %v", i, wrote, err)
		}
		if i == 0 && b.engine.Observer.Caches.Pod(KeyOf(&metav1.ObjectMeta{Namespace: "default", Name: set + "-0"})).Mark() != a.Mark {
			t.Error("the leader was not the first")
		}
	}
	pods, err := b.core.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		if p.Labels[record.RolloutIDLabel] != "k1" || p.Labels[record.RolloutBatchLabel] != "1" {
			t.Errorf("%s has labels %v", p.Name, p.Labels)
		}
	}
	if marks := b.look().Added[0].Groups[0].Marks; !cmp.Equal(marks, []plan.RolloutMark{a.Mark}) {
		t.Errorf("the group is seen as %v", marks)
	}
}

// A batch of very many pods is labelled in several passes, between which others may have the workload, and no pod twice.
func TestLabelsYield(t *testing.T) {
	const size = 2*labelsAtOnce + 10
	b := labelledBed(t, size)
	b.engine.config.ReadOnly = true // the passes are the test's
	b.run()
	b.eventually("the group is seen", func() bool {
		added := b.look().Added
		return b.Synced() && len(added) == 1 && len(added[0].Groups) == 1 && added[0].Groups[0].ReadyPods == size
	})
	for pass, want := range []int{labelsAtOnce, 2 * labelsAtOnce, size, size} {
		d, err := b.engine.Reconcile(t.Context(), vllm)
		if err != nil {
			t.Fatal(err)
		}
		patches := 0
		for _, a := range b.core.Actions() {
			if a.Matches("patch", "pods") {
				patches++
			}
		}
		state := pb.State_STATE_VERIFYING
		if want == size {
			state = pb.State_STATE_READY
		}
		if patches != want || d.State != state {
			t.Fatalf("pass %d: %d pods are labelled, want %d; %s, %s", pass, patches, want, d.State, d.Message)
		}
	}
}

// recorded is LWS's ControllerRevision of a workload's template.
func recorded(t *testing.T, w *lws.LeaderWorkerSet, hash string) *appsv1.ControllerRevision {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"spec": map[string]any{
		"leaderWorkerTemplate": patchOf(t, w.Spec.LeaderWorkerTemplate),
		"networkConfig":        map[string]any{"subdomainPolicy": "Shared", "$patch": "replace"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name: w.Name + "-" + hash + "-1", Namespace: w.Namespace,
			Labels:          map[string]string{lws.SetNameLabelKey: w.Name, lws.RevisionKey: hash},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(w, lws.GroupVersion.WithKind("LeaderWorkerSet"))},
		},
		Data: runtime.RawExtension{Raw: raw}, Revision: 1,
	}
}
