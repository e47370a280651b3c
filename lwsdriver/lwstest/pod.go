// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwstest

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Pod returns a ready pod of group 1 of default/vllm, changed by options.
func Pod(name string, opts ...func(*corev1.Pod)) *corev1.Pod {
	worker := "0"
	if strings.Count(name, "-") > 1 {
		worker = name[strings.LastIndex(name, "-")+1:]
	}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "default", UID: "u", ResourceVersion: "7",
			Labels: map[string]string{
				lws.SetNameLabelKey: "vllm", lws.GroupIndexLabelKey: "1", lws.WorkerIndexLabelKey: worker, lws.RevisionKey: "r1",
				"app": "vllm",
			},
			Annotations: map[string]string{lws.SizeAnnotationKey: "3"},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning,
			Conditions: []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
				{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(Noon)},
			},
		},
	}
	for _, opt := range opts {
		opt(p)
	}
	return p
}

// Unready makes a pod not ready.
func Unready(p *corev1.Pod) { p.Status.Conditions[1].Status = corev1.ConditionFalse }

// Waiting returns an option: a container of the pod waits.
func Waiting(reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		Unready(p)
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "server", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
		}}
	}
}

// CanaryPod returns a ready pod of the canary's group 0: the leader "0" or its worker "0-1".
func CanaryPod(canary, pod string) *corev1.Pod {
	p := Pod(canary + "-" + pod)
	p.UID = types.UID("pod-" + pod)
	p.Annotations[lws.SizeAnnotationKey] = "2"
	p.Labels = map[string]string{
		lws.SetNameLabelKey: canary, lws.GroupIndexLabelKey: "0", lws.WorkerIndexLabelKey: "1", lws.RevisionKey: "new+",
	}
	if pod == "0" {
		p.Labels[lws.WorkerIndexLabelKey], p.Labels[record.ServingLabel] = "0", record.Serving
	}
	return p
}

// LabelledRelease returns a client with the pods and revisions of a release with a rollout id, its workload and its
// canary, whose only group has size pods and is ready.
func LabelledRelease(t testing.TB, size int) (core *fake.Clientset, stable, canary *lws.LeaderWorkerSet) {
	t.Helper()
	policy, err := record.EncodePolicy(&pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"25%", "100%"}, RolloutId: "k1"})
	if err != nil {
		t.Fatal(err)
	}
	stable = WithRecord(t, StableWorkload(), record.Record{Saved: record.Native(record.Hold()), Release: &record.Release{
		ID: "r1", Policy: policy, StableRevision: "old", UpdateRevision: "new", Phase: record.Progressing, StartedAt: Noon, PhaseAt: Noon,
	}})
	canary = Canary(t, stable)
	canary.Spec.LeaderWorkerTemplate.Size = ptr.To(int32(size)) //nolint:gosec // a number of pods
	stable.Spec.LeaderWorkerTemplate.Size = canary.Spec.LeaderWorkerTemplate.Size
	core = fake.NewClientset(Revision(t, stable, "new"), Revision(t, canary, "new"))
	for i := range size {
		name := canary.Name + "-0"
		if i > 0 {
			name += fmt.Sprintf("-%d", i)
		}
		if err := core.Tracker().Add(canaryGroupPod(canary.Name, name, i, size)); err != nil {
			t.Fatal(err)
		}
	}
	return core, stable, canary
}

func canaryGroupPod(set, name string, worker, size int) *corev1.Pod {
	return Pod(name, func(p *corev1.Pod) {
		p.Labels[lws.SetNameLabelKey], p.Labels[lws.GroupIndexLabelKey] = set, "0"
		p.Labels[lws.WorkerIndexLabelKey], p.Labels[lws.RevisionKey] = fmt.Sprint(worker), "new"
		p.Annotations[lws.SizeAnnotationKey] = fmt.Sprint(size)
	})
}
