// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"testing"

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
	if err := c.Apply(t.Context(), "", []byte(podMetrics)); err != nil {
		t.Fatal(err)
	}
}
