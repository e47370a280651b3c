// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"testing"

	"k8s.io/utils/ptr"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Disown returns what prevents it, and writes nothing.
func TestDisownOfPercentagesThatRoundToZero(t *testing.T) {
	w := lwstest.WithRecord(t, lwstest.StableWorkload(), record.Record{Saved: lwstest.Rolling(0, "10%", "0%")})
	b := newFixture(t, w)
	b.run()
	b.eventually("the driver serves", b.Synced)
	request := &pb.DisownRequest{Workload: &pb.WorkloadRef{Namespace: w.Namespace, Name: w.Name}}
	_, err := b.Disown(t.Context(), request)
	assert.Equal(t, pb.ErrorReason_ERROR_REASON_REJECTED, drivererr.Reason(err), "Disown: %v", err)
	assert.Empty(t, b.Writes(), "writes")
}

// What the admission policy noted counts as saved. An edited note is reported.
func TestNotedConfigurationIsSaved(t *testing.T) {
	w := lwstest.WithRecord(t, lwstest.StableWorkload(), record.Record{Saved: lwstest.Rolling(0, "1", "0")})
	w.Spec.RolloutStrategy.RollingUpdateConfiguration = ptr.To(record.Hold())
	w.Annotations[record.WantedMaxSurge] = "50%"
	b := newFixture(t, w)
	s := b.look()
	want := lwstest.Rolling(0, "1", "50%")
	assert.True(t, record.SameRolling(s.Record.Saved, want), "saved is %+v, want %+v", s.Record.Saved, want)
	w.Annotations[record.WantedMaxSurge] = "plenty"
	b = newFixture(t, w)
	_, err := b.engine.Observe(lwstest.VLLM)
	reason := drivererr.Reason(err)
	assert.Equal(t, pb.ErrorReason_ERROR_REASON_RECORD_INVALID, reason, "reason %s, want RECORD_INVALID", reason)
	lwstest.ErrorContains(t, err, record.WantedMaxSurge, "plenty", "Remove it")
}
