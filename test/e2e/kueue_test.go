// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// kueueQuota has a queue with a quota of GPUs.
const kueueQuota = `
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: gpus}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: gpus}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors:
    - name: gpus
      resources: [{name: nvidia.com/gpu, nominalQuota: %d}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: models, namespace: %s}
spec: {clusterQueue: gpus}
`

// queued puts a workload of groups of 2 GPUs into the queue.
func queued(w *lws.LeaderWorkerSet) {
	w.Labels = map[string]string{"kueue.x-k8s.io/queue-name": "models"}
	for _, t := range templates(w) {
		one := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
		t.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: one, Limits: one.DeepCopy()}
	}
}

// The groups of a release wait for the quota of their queue like others: a canary within it is promoted, and one above it waits, says
// so and is aborted. The test has its own cluster, since Kueue's webhooks see each pod.
//
// Proves: Kueue: a canary within the quota is promoted, one above it waits, says so and is aborted.
func TestKueue(t *testing.T) {
	t.Parallel()
	c := suite.Own(t, cluster.WithNodes(4, nil))
	require.NoError(t, c.InstallKueue(t.Context()))
	e := newEnvIn(t, c)
	e.driver = driver.Prepare(t, driver.Kubeconfig(t, c), e.namespace)
	e.driver.Begin()
	e.driver.AwaitSync()
	quota := func(gpus int) {
		t.Helper()
		require.NoError(t, c.Apply(t.Context(), "", fmt.Appendf(nil, kueueQuota, gpus, e.namespace)))
	}
	quota(6)
	w := e.adopt(model("model", 2, 2, queued))

	for field, edit := range map[string]func(*corev1.PodSpec){
		"requests": func(s *corev1.PodSpec) {
			s.Containers[0].Resources.Requests["nvidia.com/gpu"] = resource.MustParse("2")
		},
		"nodeSelector": func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{"zone": "a"} },
	} {
		err := retry.RetryOnConflict(persistent, func() error {
			object := w.get()
			edit(&object.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec)
			_, err := w.lws.LeaderworkersetV1().LeaderWorkerSets(w.namespace).Update(t.Context(), object, metav1.UpdateOptions{})
			return err
		})
		assert.True(t, err != nil && strings.Contains(err.Error(), field) && strings.Contains(err.Error(), "immutable"),
			"Kueue's answer to other %s: %v", field, err)
	}

	w.edit(image("v2"))
	w.initialize("r1", policy("50%", "100%"))
	w.upgrade("r1", 0)
	_, err := w.tryUpgrade("r1", 1, nil)
	require.NoError(t, err)
	gated := func(c *pb.BatchContext) bool {
		return slices.ContainsFunc(c.GetGroups(), func(g *pb.Group) bool { return g.GetReason() == "SchedulingGated" })
	}
	waits := w.await("the second group waits for quota", func(c *pb.BatchContext) bool { return c.GetUpdated() == 2 && gated(c) })
	text := waits.GetMessage()
	assert.True(t, strings.Contains(text, "1 of 2 groups ready") && strings.Contains(text, "scheduling gates"), "the message is %q", text)
	quota(8)
	w.awaitState(pb.State_STATE_READY)
	w.finalize("r1", promote)
	w.mustRun("v2")
	w.mustBeIdle()

	quota(4)
	w.edit(image("v3"))
	w.initialize("r2", policy("50%"))
	_, err = w.tryUpgrade("r2", 0, nil)
	require.NoError(t, err)
	w.await("the canary waits for quota", gated)
	before := w.stablePods()
	w.finalize("r2", rollback)
	w.sameGroups(before)
	w.mustBeIdle()
}
