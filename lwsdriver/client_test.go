// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// An autoscaler that is not held has removed stable groups: a host still reads the state, and can end the release.
func TestClientReadsReleaseOfShrunkWorkload(t *testing.T) {
	stable := lwstest.InPhase(t, record.Progressing)
	r, err := record.DecodeRecord(stable.Annotations[record.RecordAnnotation])
	require.NoError(t, err)
	r.Release.Replicas = 4
	stable = lwstest.WithRecord(t, stable, *r)
	canary := lwstest.Canary(t, stable)
	canary.Spec.Replicas = ptr.To[int32](2)
	target, err := (&record.Target{Groups: "50%", At: lwstest.Noon}).Encode()
	require.NoError(t, err)
	canary.Annotations[record.TargetAnnotation] = target
	stable.Spec.Replicas = ptr.To[int32](1)
	stable.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: "kube-controller-manager", Subresource: "scale", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{"f:replicas":{}}}`)},
	}}
	b := newFixtureWith(t, Options{Version: "test"}, fake.NewClientset(), lwstest.NoRoutes(), stable, canary)
	b.run()
	b.eventually("the driver serves", b.Synced)
	client := plugintest.Connect(t, b.Driver, b.Driver)
	c, err := client.Call(t.Context(), &pb.CalculateBatchContextRequest{Workload: &pb.WorkloadRef{Namespace: "default", Name: "vllm"}})
	assert.True(t, err == nil && c.GetReplicas() == 1 && c.GetPlanned() == 2, "%d groups planned of %d: %v", c.GetPlanned(), c.GetReplicas(), err)
}
