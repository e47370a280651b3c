// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package grouptags tells tests which image each group of a workload runs.
package grouptags

import (
	"context"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// Of is the image tags of the whole groups of this size that are ready, in the order of their indices: "v1 v1 v1 v2". What is
// not ready is "-". The pods are those of the selector.
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

// OfGroup is the tag of the pods of one group, "-" if they are not all of them, ready, and at one.
func OfGroup(pods []corev1.Pod, size int) string {
	tag := ""
	for _, p := range pods {
		_, this, _ := strings.Cut(p.Spec.Containers[0].Image, ":")
		ready := false
		for _, c := range p.Status.Conditions {
			ready = ready || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}
		if !ready || p.DeletionTimestamp != nil || tag != "" && tag != this || len(pods) != size {
			return "-"
		}
		tag = this
	}
	return tag
}
