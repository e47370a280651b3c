// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package batchrelease

import (
	"testing"

	"github.com/openkruise/rollouts/api/v1beta1"
	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func TestFailureThresholdRoundsUp(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		threshold string
		state     pb.State
		reason    string
		updated   int32
		ready     int32
		want      bool
	}{
		{"no threshold", "", pb.State_STATE_UPGRADING, "", 4, 3, false},
		{"26 % of 4 are 2", "26%", pb.State_STATE_UPGRADING, "", 4, 2, true},
		{"26 % of 4 are not 3", "26%", pb.State_STATE_UPGRADING, "", 4, 1, false},
		{"a count", "1", pb.State_STATE_UPGRADING, "", 4, 3, true},
		{"none ready", "100%", pb.State_STATE_UPGRADING, "", 4, 0, false},
		{"a group is missing", "50%", pb.State_STATE_UPGRADING, "", 3, 3, false},
		{"after the deadline", "26%", pb.State_STATE_FAILED, "ProgressDeadlineExceeded", 4, 2, true},
		{"failed otherwise", "26%", pb.State_STATE_FAILED, "RecordInvalid", 4, 2, false},
		{"waiting for labels", "26%", pb.State_STATE_VERIFYING, "LabelingPods", 4, 4, false},
		{"the driver's verdict", "", pb.State_STATE_READY, "", 4, 4, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := batchRelease(0)
			if c.threshold != "" {
				r.Spec.ReleasePlan.FailureThreshold = ptr.To(intstr.Parse(c.threshold))
			}
			m := &machine{release: r, context: &pb.BatchContext{
				State: c.state, Reason: c.reason, Planned: 4, Updated: c.updated, UpdatedReady: c.ready,
			}}
			assert.Equal(t, c.want, m.ready(), "ready")
		})
	}
}

func TestSupports(t *testing.T) {
	t.Parallel()
	for ref, want := range map[v1beta1.ObjectRef]bool{
		{APIVersion: "leaderworkerset.x-k8s.io/v1", Kind: "LeaderWorkerSet", Name: "a"}:   true,
		{APIVersion: "leaderworkerset.x-k8s.io/v1", Kind: "LeaderWorkerSet"}:              false,
		{APIVersion: "disaggregatedset.x-k8s.io/v1", Kind: "DisaggregatedSet", Name: "a"}: true,
		{APIVersion: "leaderworkerset.x-k8s.io/v1", Kind: "DisaggregatedSet", Name: "a"}:  false,
		{APIVersion: "lockstep.dev/v1alpha1", Kind: "RolloutTarget", Name: "a"}:           false,
		{APIVersion: "apps/v1", Kind: "Deployment", Name: "a"}:                            false,
		{APIVersion: "a/b/c", Kind: "LeaderWorkerSet", Name: "a"}:                         false,
		{APIVersion: "leaderworkerset.x-k8s.io/v1", Kind: "leaderworkersets", Name: "ab"}: false,
	} {
		assert.Equal(t, want, Supports(&v1beta1.BatchRelease{Spec: v1beta1.BatchReleaseSpec{WorkloadRef: ref}}), ref)
	}
}
