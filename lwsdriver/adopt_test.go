// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"testing"

	"k8s.io/utils/ptr"

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
	if got := drivererr.Reason(err); got != pb.ErrorReason_ERROR_REASON_REJECTED {
		t.Errorf("Disown: %v", err)
	}
	if got := b.Writes(); len(got) > 0 {
		t.Errorf("writes %q", got)
	}
}

// What the admission policy noted counts as saved. An edited note is reported.
func TestNotedConfigurationIsSaved(t *testing.T) {
	w := lwstest.WithRecord(t, lwstest.StableWorkload(), record.Record{Saved: lwstest.Rolling(0, "1", "0")})
	w.Spec.RolloutStrategy.RollingUpdateConfiguration = ptr.To(record.Hold())
	w.Annotations[record.WantedMaxSurge] = "50%"
	b := newFixture(t, w)
	s := b.look()
	if want := lwstest.Rolling(0, "1", "50%"); !record.SameRolling(s.Record.Saved, want) {
		t.Errorf("saved is %+v, want %+v", s.Record.Saved, want)
	}
	w.Annotations[record.WantedMaxSurge] = "plenty"
	b = newFixture(t, w)
	_, err := b.engine.Observe(lwstest.VLLM)
	if reason := drivererr.Reason(err); reason != pb.ErrorReason_ERROR_REASON_RECORD_INVALID {
		t.Errorf("reason %s, want RECORD_INVALID", reason)
	}
	lwstest.ErrorContains(t, err, record.WantedMaxSurge, "plenty", "Remove it")
}
