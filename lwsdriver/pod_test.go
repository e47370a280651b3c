// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// testPod is a ready pod of group 1 of default/vllm; options break it.
func testPod(name string, opts ...func(*corev1.Pod)) *corev1.Pod {
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
				{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(noon)},
			},
		},
	}
	for _, opt := range opts {
		opt(p)
	}
	return p
}

func unready(p *corev1.Pod) { p.Status.Conditions[1].Status = corev1.ConditionFalse }

func waiting(reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		unready(p)
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "server", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
		}}
	}
}

func view(t testing.TB, p *corev1.Pod) *Pod {
	t.Helper()
	got, err := StripPod(p)
	if err != nil {
		t.Fatal(err)
	}
	v, ok := got.(*Pod)
	if !ok {
		t.Fatalf("viewPod returned %T", got)
	}
	return v
}

func TestViewPod(t *testing.T) {
	v := view(t, testPod("vllm-1"))
	if !v.ready || !v.since.Equal(noon) || !v.leader || v.set != "vllm" || v.Group != "1" || v.Revision != "r1" || v.size != 3 {
		t.Errorf("leader seen as %+v", v)
	}
	if v.Labels != nil || v.ResourceVersion != "7" {
		t.Errorf("metadata kept: labels %v, resourceVersion %q", v.Labels, v.ResourceVersion)
	}
	if view(t, testPod("vllm-1-2")).leader {
		t.Error("a worker is seen as leader")
	}
	again, err := StripPod(v)
	if err != nil || again != any(v) {
		t.Errorf("a view seen twice is %v, %v; informers may do that", again, err)
	}
}

func TestPodObstacle(t *testing.T) {
	for _, tt := range []struct {
		name, why    string
		pod          *corev1.Pod
		reason, text string
	}{
		{
			name: "unschedulable", why: "the scheduler's own words name the resource",
			pod: testPod("vllm-1-1", unready, func(p *corev1.Pod) {
				p.Status.Phase = corev1.PodPending
				p.Status.Conditions[0] = corev1.PodCondition{
					Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable",
					Message: "0/8 nodes are available: 8 Insufficient nvidia.com/gpu.",
				}
			}),
			reason: "Unschedulable", text: "Insufficient nvidia.com/gpu",
		},
		{
			name: "image pull", why: "the image is in the message",
			pod:    testPod("vllm-1", waiting("ImagePullBackOff", `Back-off pulling image "vllm:v3"`)),
			reason: "ImagePullBackOff", text: "vllm:v3",
		},
		{
			name: "crash loop", why: "the exit code of the last run says more than the back-off",
			pod: testPod("vllm-1", waiting("CrashLoopBackOff", ""), func(p *corev1.Pod) {
				p.Status.ContainerStatuses[0].RestartCount = 4
				p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}
			}),
			reason: "CrashLoopBackOff", text: "last exit code 137, OOMKilled; 4 restarts",
		},
		{
			name: "init container fails", why: "it comes before the containers that wait for it",
			pod: testPod("vllm-1", waiting("PodInitializing", ""), func(p *corev1.Pod) {
				p.Status.InitContainerStatuses = []corev1.ContainerStatus{{
					Name: "fetch", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 2}},
				}}
			}),
			reason: "Error", text: "container fetch: exit code 2",
		},
		{
			name: "being created", why: "nothing is wrong yet",
			pod:    testPod("vllm-1", waiting("ContainerCreating", ""), func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }),
			reason: "Starting", text: "pending",
		},
		{
			name: "loads its model", why: "only the probe knows",
			pod: testPod("vllm-1", unready), reason: "NotReady", text: "readiness probe",
		},
		{
			name: "evicted", why: "the pod's own reason",
			pod: testPod("vllm-1", unready, func(p *corev1.Pod) {
				p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "Evicted", "low on memory"
			}),
			reason: "Evicted", text: "low on memory",
		},
		{
			name: "terminating", why: "its endpoints go although its Ready condition stays",
			pod:    testPod("vllm-1", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: noon} }),
			reason: "Terminating", text: "being deleted",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := view(t, tt.pod)
			if v.ready || v.reason != tt.reason || !strings.Contains(v.message, tt.text) {
				t.Errorf("ready %t, reason %q, message %q; want %q with %q: %s", v.ready, v.reason, v.message, tt.reason, tt.text, tt.why)
			}
		})
	}
}
