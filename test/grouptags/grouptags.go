// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package grouptags reports to tests which image each group of a workload runs.
package grouptags

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
)

// Of returns the image tag of each group with this many pods, in the order of their indices: "v1 v1 v1 v2". A group that is
// not ready or not complete is "-". The selector selects the pods.
func Of(ctx context.Context, kube kubernetes.Interface, namespace, selector string, size int) (string, error) {
	pods, err := kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return "", err
	}
	byGroup := map[string][]corev1.Pod{}
	for _, p := range pods.Items {
		index := p.Labels[lws.GroupIndexLabelKey]
		byGroup[index] = append(byGroup[index], p)
	}
	out := make([]string, 0, len(byGroup))
	for i := range len(byGroup) {
		out = append(out, OfGroup(byGroup[strconv.Itoa(i)], size))
	}
	return strings.Join(out, " "), nil
}

// OfGroup returns the image tag of the pods of one group, or "-" unless all of them exist, are ready and run the same tag.
func OfGroup(pods []corev1.Pod, size int) string {
	tag := ""
	for i := range pods {
		this := OfPod(&pods[i])
		if !Ready(&pods[i]) || tag != "" && tag != this || len(pods) != size {
			return "-"
		}
		tag = this
	}
	return tag
}

// OfPod returns the image tag of a pod.
func OfPod(p *corev1.Pod) string {
	_, tag, _ := strings.Cut(p.Spec.Containers[0].Image, ":")
	return tag
}

// Ready reports whether a pod is ready and not being deleted.
func Ready(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// Await waits until [Of] returns want.
func Await(t testing.TB, kube kubernetes.Interface, namespace, selector string, size int, want string) {
	t.Helper()
	await.Nil(t, "groups at "+want, func(ctx context.Context) error {
		got, err := Of(ctx, kube, namespace, selector, size)
		if err == nil && got != want {
			err = fmt.Errorf("groups are at %s", got)
		}
		return err
	})
}
