// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package cluster

import (
	"context"
	"fmt"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
)

func TestMain(m *testing.M) {
	if os.Getenv(helperEnv) != "" {
		os.Exit(helper())
	}
	os.Exit(Main(m, WithAudit()))
}

// eventually waits until check returns nil, and fails with its last error.
func eventually(t *testing.T, what string, check func(context.Context) error) {
	t.Helper()
	await.Nil(t, what, check)
}

// newPod returns a pod with annotations.
func newPod(t *testing.T, c *Cluster, namespace, name string, annotations map[string]string) *corev1.Pod {
	t.Helper()
	pod, err := c.kube.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "init", Image: "example.com/init:v1"}},
			Containers:     []corev1.Container{{Name: "server", Image: "example.com/server:v1"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// watchPod calls f for each state of a pod until f returns true.
func watchPod(t *testing.T, c *Cluster, pod *corev1.Pod, f func(*corev1.Pod) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	w, err := c.kube.CoreV1().Pods(pod.Namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + pod.Name, ResourceVersion: pod.ResourceVersion,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	last := pod
	for event := range w.ResultChan() {
		next, ok := event.Object.(*corev1.Pod)
		if !ok {
			t.Fatalf("watch of pod %s: %v", pod.Name, event.Object)
		}
		if last = next; f(next) {
			return
		}
	}
	t.Fatalf("pod %s stayed %s", pod.Name, describe(last))
}

func ready(pod *corev1.Pod) bool {
	return podCondition(pod, corev1.PodReady).Status == corev1.ConditionTrue
}

func podCondition(pod *corev1.Pod, kind corev1.PodConditionType) corev1.PodCondition {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == kind {
			return condition
		}
	}
	return corev1.PodCondition{}
}

func describe(pod *corev1.Pod) string {
	return fmt.Sprintf("%s, ready=%t, status=%+v", pod.Status.Phase, ready(pod), pod.Status)
}
