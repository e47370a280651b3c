// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package behavior makes the groups of a LeaderWorkerSet fail in tests, and heals them.
package behavior

import (
	"context"
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// Edit returns a JSON merge patch of a LeaderWorkerSet with one container, "server". It sets the image to example.com/vllm
// with this tag, and the behavior of the pods to one of the cluster's Behavior constants. Empty means they become ready.
func Edit(tag, behavior string) string {
	value := "null"
	if behavior != "" {
		value = strconv.Quote(behavior)
	}
	return fmt.Sprintf(`{"spec":{"leaderWorkerTemplate":{"workerTemplate":{"metadata":{"annotations":{%q:%s}},"spec":{"containers":[
		{"name":"server","image":"example.com/vllm:%s"}]}}}}}`, cluster.AnnotationBehavior, value, tag)
}

// Heal removes the behavior from the pods of a group, so that they become ready.
func Heal(ctx context.Context, kube kubernetes.Interface, namespace, workload string, group int) error {
	selector := fmt.Sprintf("%s=%s,%s=%d", lws.SetNameLabelKey, workload, lws.GroupIndexLabelKey, group)
	pods, err := kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return fmt.Errorf("list pods of group %d: %w", group, err)
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, cluster.AnnotationBehavior)
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Annotations[cluster.AnnotationBehavior] == "" {
			continue
		}
		if _, err := kube.CoreV1().Pods(namespace).Patch(ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("heal group %d: %w", group, err)
		}
	}
	return nil
}
