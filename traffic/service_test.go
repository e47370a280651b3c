// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestCanaryService(t *testing.T) {
	c := newFakeCluster(t)
	before := c.world.Stable
	c.applyAll(Desired{Isolated: true})
	for name, from := range map[string]*corev1.Service{"before the isolation": before, "isolated": c.world.Stable} {
		got, err := CanaryService(from, c.setup)
		require.NoError(t, err)
		assert.Empty(t, cmp.Diff(readService(t, "canary-service.yaml"), got), "%s (-want +got)", name)
		assert.Empty(t, serviceDrift(got, got), "%s: the Service drifts from itself", name)
	}
}

func TestCanaryServiceOfHeadless(t *testing.T) {
	stable := readService(t, "service.yaml")
	stable.Spec.Type, stable.Spec.ClusterIP, stable.Spec.ClusterIPs = corev1.ServiceTypeClusterIP, corev1.ClusterIPNone, []string{"None"}
	got, err := CanaryService(stable, setupOf("vllm"))
	if err != nil || got.Spec.ClusterIP != corev1.ClusterIPNone {
		t.Errorf("clusterIP %q, %v: a gateway that resolves names would no longer reach the pods", got.Spec.ClusterIP, err)
	}
}

func TestWithoutToolMetadata(t *testing.T) {
	got := WithoutToolMetadata(map[string]string{
		"team": "x", "argocd.argoproj.io/tracking-id": "x", "meta.helm.sh/release-name": "x", "app.kubernetes.io/instance": "x",
		"app.kubernetes.io/name": "vllm", "lockstep.dev/isolation": "x", "applyset.kubernetes.io/part-of": "x",
	})
	assert.Empty(t, cmp.Diff(map[string]string{"team": "x", "app.kubernetes.io/name": "vllm"}, got), "(-want +got)")
	assert.NotNil(t, WithoutToolMetadata(nil), "nil, which a caller can't add to")
}

// TestRelinquish: at the end no managedFields entry of Lockstep is left.
func TestRelinquish(t *testing.T) {
	c := newFakeCluster(t)
	ours := metav1.ManagedFieldsEntry{Manager: FieldManager, Operation: metav1.ManagedFieldsOperationUpdate}
	theirs := metav1.ManagedFieldsEntry{Manager: "argocd", Operation: metav1.ManagedFieldsOperationApply}
	key := c.setup.Policy.Routes[0]
	for _, tt := range []struct{ have, want []metav1.ManagedFieldsEntry }{
		{[]metav1.ManagedFieldsEntry{theirs, ours}, []metav1.ManagedFieldsEntry{theirs}},
		{[]metav1.ManagedFieldsEntry{ours}, []metav1.ManagedFieldsEntry{{}}},
	} {
		c.world.Routes[key].SetManagedFields(tt.have)
		write, err := Next(c.setup, Desired{}, c.world)
		require.True(t, err == nil && write != nil, "next is %v, %v", write, err)
		meta, _ := write.Body["metadata"].(map[string]any)
		diff := cmp.Diff(tt.want, meta["managedFields"])
		assert.True(t, diff == "" && write.Key == key && write.Body["spec"] == nil, "%v (-want +got):\n%s", write, diff)
		write, _ = Next(c.setup, Desired{Isolated: true, Prepared: true}, c.world)
		assert.False(t, write != nil && write.Key == key, "%v during the release", write)
	}
	c.world.Routes[key].SetManagedFields([]metav1.ManagedFieldsEntry{theirs})
	if write, err := Next(c.setup, Desired{}, c.world); write != nil || err != nil {
		t.Errorf("%v, %v: no entry is Lockstep's", write, err)
	}
	pool := newFakeCluster(t).withPool()
	pool.world.StablePool.SetManagedFields([]metav1.ManagedFieldsEntry{theirs, ours})
	write, err := Next(pool.setup, Desired{}, pool.world)
	assert.True(t, err == nil && write != nil && write.Key == (Key{KindInferencePool, "vllm"}), "pool: %v, %v", write, err)
}

// TestRoutedPorts: of the canary Service's ports those count to which routes or Ingresses send requests, by number or by name.
func TestRoutedPorts(t *testing.T) {
	for _, tt := range []struct {
		name    string
		cluster *fakeCluster
		want    []string
	}{
		{"routes", newFakeCluster(t), []string{"http"}},
		{"ingress", newFakeCluster(t).withoutRoutes().withIngress(), []string{"http", "metrics"}},
		{"pool", newFakeCluster(t).withPool(), nil},
		{"nothing", newFakeCluster(t).withoutRoutes(), nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := tt.cluster
			got := c.world.RoutedPorts(c.setup)
			assert.Nil(t, got, "%v without a canary Service", got)
			c.applyAll(Desired{Prepared: true})
			assert.Empty(t, cmp.Diff(tt.want, c.world.RoutedPorts(c.setup)), "(-want +got)")
		})
	}
}
