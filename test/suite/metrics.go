// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// podMetrics is a CRD in place of the metrics API.
const podMetrics = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: pods.metrics.k8s.io
  annotations: {api-approved.kubernetes.io: "unapproved, for tests only"}
spec:
  group: metrics.k8s.io
  scope: Namespaced
  names: {plural: pods, singular: podmetrics, kind: PodMetrics, listKind: PodMetricsList}
  versions:
  - name: v1beta1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// ServePodMetrics serves the metrics API, for all tests of the cluster. The HorizontalPodAutoscaler's controller reads PodMetrics that
// tests apply as if a metrics server served them.
func ServePodMetrics(t testing.TB, c *cluster.Cluster) {
	t.Helper()
	require.NoError(t, c.Apply(t.Context(), "", []byte(podMetrics)))
	_, _, client := Clients(c)
	await.Nil(t, "the metrics API is served", func(ctx context.Context) error {
		_, err := client.Resource(podMetricsResource).List(ctx, metav1.ListOptions{Limit: 1})
		return err
	})
}

// podMetricsResource is the resource of [SetPodMetrics].
var podMetricsResource = schema.GroupVersionResource{Group: "metrics.k8s.io", Version: "v1beta1", Resource: "pods"}

// SetPodMetrics publishes a metric of leaders of a LeaderWorkerSet, by the pods' names, as so many Mi of memory.
func SetPodMetrics(ctx context.Context, c *cluster.Cluster, namespace, set string, leaders map[string]int) error {
	var b strings.Builder
	for pod, value := range leaders {
		fmt.Fprintf(&b, `---
apiVersion: metrics.k8s.io/v1beta1
kind: PodMetrics
metadata:
  name: %s
  labels: {leaderworkerset.sigs.k8s.io/name: %s, leaderworkerset.sigs.k8s.io/worker-index: "0"}
timestamp: %q
window: 3s
containers: [{name: server, usage: {memory: %dMi}}]
`, pod, set, time.Now().UTC().Format(time.RFC3339), value)
	}
	return c.Apply(ctx, namespace, []byte(b.String()))
}
