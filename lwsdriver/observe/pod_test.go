// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
)

func TestNewPod(t *testing.T) {
	v := NewPod(lwstest.Pod("vllm-1"))
	if !v.ready || !v.since.Equal(lwstest.Noon) || !v.leader || v.set != "vllm" || v.Group != "1" || v.Revision != "r1" || v.size != 3 {
		t.Errorf("leader seen as %+v", v)
	}
	if m := v.GetObjectMeta(); m.GetLabels() != nil || m.GetResourceVersion() != "7" || m.GetName() != "vllm-1" {
		t.Errorf("metadata kept: %+v", m)
	}
	if NewPod(lwstest.Pod("vllm-1-2")).leader {
		t.Error("a worker is seen as leader")
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
			pod: lwstest.Pod("vllm-1-1", lwstest.Unready, func(p *corev1.Pod) {
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
			pod:    lwstest.Pod("vllm-1", lwstest.Waiting("ImagePullBackOff", `Back-off pulling image "vllm:v3"`)),
			reason: "ImagePullBackOff", text: "vllm:v3",
		},
		{
			name: "crash loop", why: "the exit code of the last run says more than the back-off",
			pod: lwstest.Pod("vllm-1", lwstest.Waiting("CrashLoopBackOff", ""), func(p *corev1.Pod) {
				p.Status.ContainerStatuses[0].RestartCount = 4
				p.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}
			}),
			reason: "CrashLoopBackOff", text: "last exit code 137, OOMKilled; 4 restarts",
		},
		{
			name: "init container fails", why: "it comes before the containers that wait for it",
			pod: lwstest.Pod("vllm-1", lwstest.Waiting("PodInitializing", ""), func(p *corev1.Pod) {
				p.Status.InitContainerStatuses = []corev1.ContainerStatus{{
					Name: "fetch", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 2}},
				}}
			}),
			reason: "Error", text: "container fetch: exit code 2",
		},
		{
			name: "being created", why: "nothing is wrong yet",
			pod:    lwstest.Pod("vllm-1", lwstest.Waiting("ContainerCreating", ""), func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }),
			reason: "Starting", text: "pending",
		},
		{
			name: "loads its model", why: "only the probe knows",
			pod: lwstest.Pod("vllm-1", lwstest.Unready), reason: "NotReady", text: "readiness probe",
		},
		{
			name: "evicted", why: "the pod's own reason",
			pod: lwstest.Pod("vllm-1", lwstest.Unready, func(p *corev1.Pod) {
				p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "Evicted", "low on memory"
			}),
			reason: "Evicted", text: "low on memory",
		},
		{
			name: "terminating", why: "its endpoints go although its Ready condition stays",
			pod:    lwstest.Pod("vllm-1", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: lwstest.Noon} }),
			reason: "Terminating", text: "being deleted",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := NewPod(tt.pod)
			if v.ready || v.reason != tt.reason || !strings.Contains(v.message, tt.text) {
				t.Errorf("ready %t, reason %q, message %q; want %q with %q: %s", v.ready, v.reason, v.message, tt.reason, tt.text, tt.why)
			}
		})
	}
}

func TestShorten(t *testing.T) {
	for _, tt := range []struct {
		name, in, want string
		limit          int
	}{
		{"short", "ready", "ready", 5},
		{"long", "not ready", "not…", 6},
		{"between runes", "éééé", "é…", 6},
		{"not cut in a rune", "aé", "aé", 3},
		{"no text", "a\xffb", "a\uFFFDb", 10},
		{"empty", "", "", 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Shorten(tt.in, tt.limit)
			if got != tt.want || len(got) > tt.limit || !utf8.ValidString(got) {
				t.Errorf("%q, want %q in %d bytes", got, tt.want, tt.limit)
			}
		})
	}
}

func TestPodMessageIsShort(t *testing.T) {
	v := NewPod(lwstest.Pod("vllm-1", lwstest.Waiting("ImagePullBackOff", strings.Repeat("é\xff", 1000))))
	if len(v.message) > maxPodMessage || !utf8.ValidString(v.message) || !strings.HasPrefix(v.message, "container server: ImagePullBackOff") {
		t.Errorf("the message has %d bytes: %q", len(v.message), v.message)
	}
}
