// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package node

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/load"
	"github.com/lockstep-rollouts/lockstep/test/podanswer"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// A revision that can't start costs no request. The message names why, and a rollback removes it.
//
// Proves (test, crash-loop): Real containers that fail: the cause is named, no request is lost.
// Proves: Real containers that fail in other ways.
func TestBrokenRevision(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(*corev1.Container)
		want   string
	}{
		{"missing-image", func(c *corev1.Container) { c.Image = strings.Replace(c.Image, ":v2", ":missing", 1) }, ":missing"},
		{"crash-loop", func(c *corev1.Container) {
			for i := range c.Env {
				if c.Env[i].Name == "LOAD" {
					c.Env[i].Value = "never"
				}
			}
		}, "exit code 1 (Error)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := begin(t, canary(), func(w *lws.LeaderWorkerSet) {
				for _, template := range suite.Templates(w) {
					test.change(&template.Spec.Containers[0])
				}
			})
			c.phase("broken batch", 0)
			c.request(0)
			c.says(test.want)
			c.Await(c.requests, enough)
			c.rollsBack()
		})
	}
}

// Groups of a canary without requests fail in the ways of model servers. LWS recreates them, and the release continues.
//
// Proves (test, out-of-memory): Real containers that fail: the cause is named, no request is lost.
// Proves: Real containers that fail in other ways.
func TestGroupFails(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, how string
		worker    bool
		want      string
	}{
		{"out-of-memory", "memory", true, "(OOMKilled)"},
		{"exit", "exit", false, "exit code 1 (Error)"},
		{"hang", "hang", false, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := begin(t, canary())
			c.batch(0)
			c.phase("a group fails", 0)
			pod := c.now(t.Context()).GetCanaryWorkload() + "-0"
			if test.worker {
				pod += "-1"
			}
			uid := c.pod(pod).UID
			c.fail(pod, test.how)
			c.Eventually("the driver notices", func(ctx context.Context) error {
				if now := c.now(ctx); now.GetState() == pb.State_STATE_READY || !strings.Contains(now.GetMessage(), test.want) {
					return fmt.Errorf("it says %s: %q, without %q", now.GetState(), now.GetMessage(), test.want)
				}
				return nil
			})
			c.Upgrade(0)
			assert.NotEqual(t, uid, c.pod(pod).UID, "the group was not recreated")
			c.weigh(10)
			c.rollsBack()
		})
	}
}

// A kubelet dies, and its containers live on. No request is lost, nothing is updated on its node, and the release continues once it is back.
//
// Proves: A node is drained, its kubelet dies, it dies with its containers.
func TestKubeletDies(t *testing.T) {
	c := begin(t, canary())
	c.batch(0)
	c.weigh(10)
	c.capacity = 0
	c.phase("a kubelet is dead", 0)
	require.NoError(t, c.Cluster.KillComponent(cluster.Kubelet(1)))
	c.nodeIs(1, corev1.ConditionUnknown)
	c.request(1)
	c.Await(c.requests, enough)
	now := c.now(t.Context())
	assert.NotEqual(t, pb.State_STATE_READY, now.GetState(), "the batch is ready on a node without kubelet: %v", now)
	c.phase("it is back", 0)
	require.NoError(t, c.Cluster.StartComponent(t.Context(), cluster.Kubelet(1)))
	c.Upgrade(1)
	c.weigh(50)
	c.promoted()
}

// The pods of a node are evicted, as far as budgets that count groups allow at a time.
//
// Proves: A node is drained, its kubelet dies, it dies with its containers.
func TestDrain(t *testing.T) {
	c := begin(t, canary())
	suite.GroupBudgets(t, c.Kube, c.Namespace, map[string]string{"app": c.Name}) // the canary's pods have the label, too
	c.batch(1)
	c.weigh(50)
	c.capacity = 0
	c.phase("draining", 0)
	c.cordon(1, true)
	t.Cleanup(func() { c.cordon(1, false) })
	c.Eventually("the node is drained", func(ctx context.Context) error { return c.evict(ctx, 1) })
	c.phase("drained", 0)
	c.Upgrade(2)
	c.weigh(100)
	c.promoted()
}

// A node dies with its containers. Only requests to its endpoints are lost, until Kubernetes has noticed; the groups of the other node
// serve, and the release continues once the node is back.
//
// Proves: A node is drained, its kubelet dies, it dies with its containers.
func TestNodeDies(t *testing.T) {
	c := beginOf(serve(t, together), canary())
	c.batch(0)
	c.capacity = 0
	c.requests.Begin(load.Phase{Name: "a node dies", MayFail: true})
	c.Await(c.requests, 3*rate) // so that none from before is running
	require.NoError(t, c.Cluster.KillNode(1))
	c.nodeIs(1, corev1.ConditionUnknown)
	c.Settled(c.requests)
	c.phase("its endpoints are gone", 0)
	c.Await(c.requests, enough)
	c.phase("it is back", 0)
	for _, component := range []string{cluster.Containerd(1), cluster.Kubelet(1)} {
		require.NoError(t, c.Cluster.StartComponent(t.Context(), component))
	}
	c.Upgrade(1)
	c.weigh(50)
	c.promoted()
}

// together has the pods of a group on one node.
func together(w *lws.LeaderWorkerSet) {
	for _, template := range suite.Templates(w) {
		template.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey:    corev1.LabelHostname,
				LabelSelector:  &metav1.LabelSelector{MatchLabels: map[string]string{"app": w.Name}},
				MatchLabelKeys: []string{lws.SetNameLabelKey, lws.GroupIndexLabelKey},
			}},
		}}
	}
}

// says waits until the driver says why the release is where it is.
func (c *course) says(want string) {
	c.T.Helper()
	c.Eventually("the driver says "+want, func(ctx context.Context) error {
		if now := c.now(ctx); !strings.Contains(now.GetMessage(), want) {
			return fmt.Errorf("it says %s: %q", now.GetState(), now.GetMessage())
		}
		return nil
	})
}

func (c *course) pod(name string) *corev1.Pod {
	c.T.Helper()
	pod := suite.Get(c.T.Context(), c.T, c.Kube.CoreV1().Pods(c.Namespace), name)
	return pod
}

// fail has the model server of a pod fail.
func (c *course) fail(pod, how string) {
	c.T.Helper()
	address := fmt.Sprintf("http://%s:%d/fail?how=%s", c.pod(pod).Status.PodIP, podanswer.Port, how)
	request, err := http.NewRequestWithContext(c.T.Context(), http.MethodPost, address, http.NoBody)
	require.NoError(c.T, err)
	// A server that exits does not answer.
	if response, err := http.DefaultClient.Do(request); err == nil {
		_ = response.Body.Close()
	}
}

// nodeIs waits until a node's condition Ready has a status.
func (c *course) nodeIs(i int, want corev1.ConditionStatus) {
	c.T.Helper()
	c.Eventually("the node's state is known", func(ctx context.Context) error {
		node, err := c.Kube.CoreV1().Nodes().Get(ctx, cluster.NodeName(i), metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == want {
				return nil
			}
		}
		return fmt.Errorf("%s is not %s", node.Name, want)
	})
}

// cordon has the scheduler use a node, or not.
func (c *course) cordon(i int, unschedulable bool) {
	c.T.Helper()
	patch := fmt.Appendf(nil, `{"spec": {"unschedulable": %t}}`, unschedulable)
	_, err := c.Kube.CoreV1().Nodes().Patch(context.WithoutCancel(c.T.Context()), cluster.NodeName(i), types.MergePatchType, patch, metav1.PatchOptions{})
	assert.NoError(c.T, err)
}

// evict evicts the pods of a node, as `kubectl drain` does, and returns nil when none is left.
func (c *course) evict(ctx context.Context, i int) error {
	pods, err := c.Kube.CoreV1().Pods(c.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + cluster.NodeName(i)})
	if err != nil {
		return err
	}
	for _, pod := range pods.Items {
		eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}}
		err := c.Kube.PolicyV1().Evictions(c.Namespace).Evict(ctx, eviction)
		if err != nil && !apierrors.IsTooManyRequests(err) && !apierrors.IsNotFound(err) {
			return err
		}
	}
	if len(pods.Items) > 0 {
		return fmt.Errorf("%d pods are left on the node", len(pods.Items))
	}
	return nil
}
