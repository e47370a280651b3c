// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/wait"
)

// settleNamespace is the namespace of Settle. It is kept, empty.
const settleNamespace = "lockstep-settle"

// probeSet is a workload of two pods that needs every controller.
type probeSet struct {
	resource schema.GroupVersionResource
	manifest string
}

var (
	settleLWS = probeSet{lwsResource, `
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
spec: {replicas: 1, leaderWorkerTemplate: {size: 2, workerTemplate: {spec: {containers: [{name: c, image: c}]}}}}
`}
	settleStatefulSet = probeSet{appsv1.SchemeGroupVersion.WithResource("statefulsets"), `
apiVersion: apps/v1
kind: StatefulSet
spec:
  replicas: 2
  selector: {matchLabels: {app: settle}}
  template: {metadata: {labels: {app: settle}}, spec: {containers: [{name: c, image: c}]}}
`}
)

// Settle returns when all controllers watch the API server again: it creates a small workload in its own namespace, waits until that is
// ready, and deletes it.
//
// Use it after [Cluster.StartAPIServer], unless the test is about the following seconds. Until a controller watches again, it misses
// that an object is deleted and recreated with the same name: the garbage collector of Kubernetes 1.36 then never deletes the
// dependents of the old object. The worker pods of an LWS group whose leader was deleted in that time stay, and block the group.
func (c *Cluster) Settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := c.settle(ctx); err != nil {
		return fmt.Errorf("wait for the controllers: %w", err)
	}
	return nil
}

func (c *Cluster) settle(ctx context.Context) error {
	probe := settleStatefulSet
	if _, err := c.process(LWS); err == nil {
		probe = settleLWS
	}
	namespace := fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: %s}}", settleNamespace)
	if err := c.Apply(ctx, "", []byte(namespace)); err != nil {
		return err
	}
	object, err := probe.object()
	if err != nil {
		return err
	}
	if err := c.applier.apply(ctx, object, settleNamespace); err != nil {
		return err
	}
	if err := c.waitPods(ctx, object.GetName(), 2); err != nil {
		return err
	}
	client := c.applier.client.Resource(probe.resource).Namespace(settleNamespace)
	if err := client.Delete(ctx, object.GetName(), metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete %s: %w", object.GetName(), err)
	}
	return c.waitPods(ctx, object.GetName(), 0)
}

func (p probeSet) object() (*unstructured.Unstructured, error) {
	objects, err := decodeManifest([]byte(p.manifest))
	if err != nil {
		return nil, err
	}
	objects[0].SetName("settle-" + rand.String(5))
	return objects[0], nil
}

// waitPods waits until the workload has exactly n pods, all of them ready.
func (c *Cluster) waitPods(ctx context.Context, name string, n int) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		last = c.checkPods(ctx, name, n)
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}

func (c *Cluster) checkPods(ctx context.Context, name string, n int) error {
	pods, err := c.kube.CoreV1().Pods(settleNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if found, ready := countPods(pods.Items, name); found != n || ready != n {
		return fmt.Errorf("%s has %d pods, %d of them ready, want %d", name, found, ready, n)
	}
	return nil
}

// countPods returns the number of pods, and of ready pods, whose names start with the workload's.
func countPods(pods []corev1.Pod, name string) (found, ready int) {
	for i := range pods {
		if !strings.HasPrefix(pods[i].Name, name+"-") {
			continue
		}
		found++
		for _, condition := range pods[i].Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
				ready++
			}
		}
	}
	return found, ready
}
