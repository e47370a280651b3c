// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// seeders is the number of concurrent creations of pods.
const seeders = 16

// multiply copies the pods of a workload's group 0, as its controllers created them, to groups 1 to replicas-1.
func (b *bench) multiply(ctx context.Context, set string, replicas int) error {
	models, err := b.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: lws.SetNameLabelKey + "=" + set})
	if err != nil {
		return fmt.Errorf("list pods of %s: %w", set, err)
	}
	if len(models.Items) != scaleSize {
		return fmt.Errorf("%s has %d pods, want one group of %d", set, len(models.Items), scaleSize)
	}
	b.logf("making %d pods of %s", (replicas-1)*scaleSize, set)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(seeders)
	for i := 1; i < replicas; i++ {
		g.Go(func() error {
			for m := range models.Items {
				if err := b.copyPod(ctx, &models.Items[m], set, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// copyPod creates the pod of group i that corresponds to one of group 0.
func (b *bench) copyPod(ctx context.Context, model *corev1.Pod, set string, i int) error {
	rename := func(s string) string {
		if rest, ok := strings.CutPrefix(s, set+"-0"); ok {
			return set + "-" + strconv.Itoa(i) + rest
		}
		return s
	}
	pod := model.DeepCopy()
	pod.ObjectMeta = metav1.ObjectMeta{
		Name: rename(model.Name), Labels: pod.Labels, Annotations: pod.Annotations, OwnerReferences: pod.OwnerReferences,
		Finalizers: pod.Finalizers,
	}
	for _, values := range []map[string]string{pod.Labels, pod.Annotations} {
		for key, value := range values {
			values[key] = rename(value)
		}
	}
	pod.Labels[lws.GroupIndexLabelKey] = strconv.Itoa(i)
	pod.Spec.Hostname = rename(pod.Spec.Hostname)
	made, err := b.kube.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create pod %s: %w", pod.Name, err)
	}
	made.Status = model.Status
	if _, err := b.kube.CoreV1().Pods(namespace).UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update status of pod %s: %w", pod.Name, err)
	}
	return nil
}

// startChurn makes pods of the stable side unready and ready again, at about the given rate, until stop is called, which returns
// the actual rate.
func (b *bench) startChurn(ctx context.Context) (stop func() (perSecond float64, err error)) {
	ctx, cancel := context.WithCancel(ctx)
	g := &errgroup.Group{}
	var changes atomic.Int64
	begin := time.Now()
	const changers = 4
	for range changers {
		g.Go(func() error {
			ticks := time.NewTicker(changers * time.Second / time.Duration(b.churn))
			defer ticks.Stop()
			for {
				select {
				case <-ctx.Done():
					return nil
				case <-ticks.C:
				}
				if err := b.flip(ctx); err != nil && ctx.Err() == nil {
					return err
				}
				changes.Add(1)
			}
		})
	}
	return func() (float64, error) {
		cancel()
		err := g.Wait()
		return float64(changes.Load()) / time.Since(begin).Seconds(), err
	}
}

// flip sets one pod's readiness at random.
func (b *bench) flip(ctx context.Context) error {
	return b.setReady(ctx, fmt.Sprintf("%s-%d-%d", scaleName, rand.IntN(b.groups*4/5), 1+rand.IntN(scaleSize-1)), rand.IntN(2) == 0)
}

// setReady makes a pod ready or unready.
func (b *bench) setReady(ctx context.Context, pod string, ready bool) error {
	status := map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}[ready]
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":%q,"lastTransitionTime":%q}]}}`, status, time.Now().UTC().Format(time.RFC3339))
	_, err := b.kube.CoreV1().Pods(namespace).Patch(ctx, pod, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("change pod %s: %w", pod, err)
	}
	return nil
}
