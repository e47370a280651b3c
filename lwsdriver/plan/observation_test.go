// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// TestInFlightUntilRestored checks that a release is in flight until the user's objects are restored, and while that is
// unknown.
func TestInFlightUntilRestored(t *testing.T) {
	at := func(v routing, phase record.Phase) Observation {
		o := Observation{Stable: Workload{Name: "vllm"}, Record: &record.Record{Release: &record.Release{ID: "r1", Phase: phase}}}
		o.Traffic = v.observe(o)
		return o
	}
	damaged := at(routing{isolated: true}, record.Promoted).Traffic
	damaged.World.Stable.Annotations[traffic.IsolationAnnotation] = "?"
	for _, tc := range []struct {
		name string
		at   func(record.Phase) Observation
		want bool
	}{
		{"restored", func(p record.Phase) Observation { return at(routing{}, p) }, false},
		{"isolation is left", func(p record.Phase) Observation { return at(routing{isolated: true}, p) }, true},
		{"not synced", func(p record.Phase) Observation { return at(routing{unread: true}, p) }, true},
		{"it can't be restored", func(p record.Phase) Observation { o := at(routing{}, p); o.Traffic = damaged; return o }, false},
	} {
		for _, phase := range []record.Phase{record.Promoted, record.CleaningUp, record.Nothing} {
			assert.Equal(t, tc.want, InFlight(tc.at(phase)), "%s, %s", tc.name, phase)
		}
	}
}

// TestNextReleaseWaitsForCaches checks that the host of the next release is asked to retry, not refused, while it is
// unknown whether the last one is over.
func TestNextReleaseWaitsForCaches(t *testing.T) {
	for _, tc := range []struct {
		phase record.Phase
		added int
		want  pb.ErrorReason
	}{
		{record.Promoted, 0, pb.ErrorReason_ERROR_REASON_NOT_SYNCED},
		{record.CleaningUp, 0, pb.ErrorReason_ERROR_REASON_NOT_SYNCED},
		{record.CleaningUp, 1, pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS},
		{record.Progressing, 0, pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS},
	} {
		o := Observation{
			Record: &record.Record{Release: &record.Release{ID: "r1", Owner: "argo-rollouts/default/vllm", Phase: tc.phase}},
			Added:  make([]Workload, tc.added),
		}
		o.Traffic = routing{unread: true}.observe(o)
		_, err := (Begin{ReleaseID: "r2"}).alreadyBegun(o)
		assert.Equal(t, tc.want, drivererr.Reason(err), "%s with %d added: %v", tc.phase, tc.added, err)
		if in := drivererr.Metadata(err); tc.want == pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS && (in["release_id"] != "r1" || in["owner"] != "argo-rollouts/default/vllm") {
			t.Errorf("%s: metadata %v", tc.phase, in)
		}
	}
}
