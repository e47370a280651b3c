// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package cluster

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func TestPodBecomesReadyAtOnce(t *testing.T) {
	c := Shared(t)
	pod := newPod(t, c, c.Namespace(t), "plain", nil)
	watchPod(t, c, pod, func(p *corev1.Pod) bool {
		if p.Status.Phase == corev1.PodRunning && !ready(p) {
			t.Errorf("the pod was Running before it was Ready: %s", describe(p))
		}
		pod = p
		return ready(p)
	})
	status := pod.Status
	if status.PodIP == "" || len(status.PodIPs) != 1 || status.HostIP == "" || status.StartTime == nil {
		t.Errorf("addresses or start time are missing: %s", describe(pod))
	}
	if container := status.ContainerStatuses[0]; container.Image != "example.com/server:v1" || !container.Ready || container.State.Running == nil {
		t.Errorf("container status is %+v", container)
	}
	if init := status.InitContainerStatuses[0]; init.Image != "example.com/init:v1" || init.State.Terminated == nil {
		t.Errorf("init container status is %+v", init)
	}
	remove(t, c, pod)
}

// The order of states matters here, and that none comes too early; a busy machine is late.
func TestStartup(t *testing.T) {
	c := Shared(t)
	const startup, warmup = 1500 * time.Millisecond, 1200 * time.Millisecond
	namespace, begin := c.Namespace(t), time.Now()
	pod := newPod(t, c, namespace, "slow", map[string]string{
		AnnotationStartup: startup.String(), AnnotationWarmup: warmup.String(),
	})
	creating, running := false, time.Duration(0)
	watchPod(t, c, pod, func(p *corev1.Pod) bool {
		creating = creating || p.Status.Phase == corev1.PodPending && waiting(p) == "PodInitializing"
		if running == 0 && p.Status.Phase == corev1.PodRunning && !ready(p) {
			running = time.Since(begin)
		}
		pod = p
		return ready(p)
	})
	if took := time.Since(begin); !creating || running < startup || took < startup+warmup {
		t.Errorf("creating=%t, Running after %s, Ready after %s; want %s and %s more", creating, running, took, startup, warmup)
	}
	initialized, becameReady := podCondition(pod, corev1.PodInitialized), podCondition(pod, corev1.PodReady)
	if !initialized.LastTransitionTime.Before(&becameReady.LastTransitionTime) {
		t.Errorf("Initialized at %s, Ready at %s", initialized.LastTransitionTime, becameReady.LastTransitionTime)
	}
}

func TestNeverReadyUntilCured(t *testing.T) {
	c := Shared(t)
	pod := newPod(t, c, c.Namespace(t), "never", map[string]string{AnnotationBehavior: BehaviorNeverReady})
	watchPod(t, c, pod, func(p *corev1.Pod) bool { pod = p; return p.Status.Phase == corev1.PodRunning })
	if ready(pod) || !pod.Status.ContainerStatuses[0].State.Running.StartedAt.After(time.Time{}) {
		t.Errorf("want a running container in an unready pod, got %s", describe(pod))
	}
	setBehavior(t, c, pod, "")
	watchPod(t, c, pod, ready)
}

func TestReadyPodTurnsUnready(t *testing.T) {
	c := Shared(t)
	pod := newPod(t, c, c.Namespace(t), "turns", nil)
	watchPod(t, c, pod, func(p *corev1.Pod) bool { pod = p; return ready(p) })
	setBehavior(t, c, pod, BehaviorNeverReady)
	watchPod(t, c, pod, func(p *corev1.Pod) bool { return !ready(p) })
}

func TestImagePull(t *testing.T) {
	c := Shared(t)
	pod := newPod(t, c, c.Namespace(t), "pull", map[string]string{AnnotationBehavior: BehaviorImagePull})
	watchPod(t, c, pod, func(p *corev1.Pod) bool { pod = p; return waiting(p) == "ImagePullBackOff" })
	if pod.Status.Phase != corev1.PodPending || ready(pod) {
		t.Errorf("got %s", describe(pod))
	}
	setBehavior(t, c, pod, "")
	watchPod(t, c, pod, ready)
}

func TestCrash(t *testing.T) {
	c := Shared(t)
	pod := newPod(t, c, c.Namespace(t), "crash", map[string]string{AnnotationBehavior: BehaviorCrash, AnnotationPeriod: "200ms"})
	ran := false
	watchPod(t, c, pod, func(p *corev1.Pod) bool {
		ran = ran || p.Status.Phase == corev1.PodRunning && p.Status.ContainerStatuses[0].State.Running != nil
		pod = p
		return waiting(p) == "CrashLoopBackOff"
	})
	container := pod.Status.ContainerStatuses[0]
	if last := container.LastTerminationState.Terminated; !ran || container.RestartCount != 1 || last == nil || last.ExitCode != 1 {
		t.Errorf("ran=%t, container status is %+v", ran, container)
	}
}

func TestFlap(t *testing.T) {
	c := Shared(t)
	pod := newPod(t, c, c.Namespace(t), "flap", map[string]string{AnnotationBehavior: BehaviorFlap, AnnotationPeriod: "150ms"})
	changes, was := 0, false
	watchPod(t, c, pod, func(p *corev1.Pod) bool {
		if ready(p) != was {
			changes, was = changes+1, ready(p)
		}
		return changes == 5
	})
}

func TestTermination(t *testing.T) {
	c := Shared(t)
	const termination = 2 * time.Second
	for _, finalizers := range [][]string{nil, {"test.lockstep.dev/hold"}} {
		t.Run(fmt.Sprintf("with %d finalizers", len(finalizers)), func(t *testing.T) {
			pod := newPod(t, c, c.Namespace(t), "slow", map[string]string{AnnotationTermination: termination.String()})
			watchPod(t, c, pod, func(p *corev1.Pod) bool { pod = p; return ready(p) })
			pod = patchPod(t, c, pod, fmt.Sprintf(`{"metadata":{"finalizers":%s}}`, jsonList(finalizers)))
			begin := time.Now()
			if err := c.kube.CoreV1().Pods(pod.Namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if len(finalizers) > 0 {
				watchPod(t, c, pod, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded && !ready(p) })
				patchPod(t, c, pod, `{"metadata":{"finalizers":null}}`)
			}
			gone(t, c, pod)
			if took := time.Since(begin); took < termination {
				t.Errorf("gone after %s, want at least %s", took, termination)
			}
		})
	}
}

// A late request of KWOK for an earlier pod of the same name changes nothing.
func TestLateRequestsOfKWOK(t *testing.T) {
	c := Shared(t)
	namespace := c.Namespace(t)
	config, err := clientcmd.BuildConfigFromFlags("", c.path(KWOK+".kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	late := kubernetes.NewForConfigOrDie(config)
	pod := newPod(t, c, namespace, "next", nil)
	watchPod(t, c, pod, func(p *corev1.Pod) bool { pod = p; return ready(p) })
	now := int64(0)
	err = late.CoreV1().Pods(namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	if !apierrors.IsInvalid(err) {
		t.Errorf("deleting a live pod: %v, want Invalid", err)
	}
	_, err = late.CoreV1().Pods(namespace).Patch(t.Context(), pod.Name, types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`),
		metav1.PatchOptions{}, "status")
	if !apierrors.IsInvalid(err) {
		t.Errorf("ending a live pod: %v, want Invalid", err)
	}
	remove(t, c, pod)
}

func jsonList(list []string) string {
	if len(list) == 0 {
		return "null"
	}
	return fmt.Sprintf("[%q]", list[0])
}

func setBehavior(t *testing.T, c *Cluster, pod *corev1.Pod, behavior string) {
	t.Helper()
	patchPod(t, c, pod, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, AnnotationBehavior, behavior))
}

func patchPod(t *testing.T, c *Cluster, pod *corev1.Pod, patch string) *corev1.Pod {
	t.Helper()
	patched, err := c.kube.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return patched
}

func remove(t *testing.T, c *Cluster, pod *corev1.Pod) {
	t.Helper()
	if err := c.kube.CoreV1().Pods(pod.Namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	gone(t, c, pod)
}

func gone(t *testing.T, c *Cluster, pod *corev1.Pod) {
	t.Helper()
	eventually(t, "pod "+pod.Name+" goes", func(ctx context.Context) error {
		_, err := c.kube.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is still there"), err)
	})
}
