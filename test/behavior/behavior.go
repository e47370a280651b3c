// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package behavior makes groups of a LeaderWorkerSet go wrong in tests, and mends them.
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

// Edit is a JSON merge patch of a LeaderWorkerSet that has one container, "server": its groups are to run the image
// example.com/vllm with this tag, and behave in this way, which is one of the cluster's Behavior constants. Empty: well.
func Edit(tag, behavior string) string {
	value := "null"
	if behavior != "" {
		value = strconv.Quote(behavior)
	}
	return fmt.Sprintf(`{"spec":{"leaderWorkerTemplate":{"workerTemplate":{"metadata":{"annotations":{%q:%s}},"spec":{"containers":[
		{"name":"server","image":"example.com/vllm:%s"}]}}}}}`, cluster.AnnotationBehavior, value, tag)
}

// Heal makes the pods of a group behave well.
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
