// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// always returns the same view for every desired routing.
type always struct{ view traffic.View }

func (a always) Facts() traffic.Facts              { return a.view.Facts }
func (a always) Look(traffic.Desired) traffic.View { return a.view }

// TestInFlightUntilRestored checks that a release is in flight until the user's objects are restored, and while that is
// unknown.
func TestInFlightUntilRestored(t *testing.T) {
	at := func(v traffic.View, phase record.Phase) Observation {
		return Observation{Record: &record.Record{Release: &record.Release{ID: "r1", Phase: phase}}, Traffic: always{v}}
	}
	for _, tc := range []struct {
		name string
		view traffic.View
		want bool
	}{
		{"restored", traffic.View{Stage: traffic.Verified}, false},
		{"a fence is left", traffic.View{Stage: traffic.Drifted, Reason: traffic.ReasonWriting}, true},
		{"not synced", traffic.View{Reason: traffic.ReasonNotSynced}, true},
		{"it can't be restored", traffic.View{Stage: traffic.Blocked, Reason: traffic.ReasonBlocked}, false},
	} {
		for _, phase := range []record.Phase{record.Promoted, record.CleaningUp, record.Nothing} {
			if got := InFlight(at(tc.view, phase)); got != tc.want {
				t.Errorf("%s, %s: %t", tc.name, phase, got)
			}
		}
	}
}

// TestNextReleaseWaitsForCaches checks that the host of the next release is asked to retry, not refused, while it is
// unknown whether the last one is over.
func TestNextReleaseWaitsForCaches(t *testing.T) {
	blind := always{traffic.View{Reason: traffic.ReasonNotSynced}}
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
			Record:  &record.Record{Release: &record.Release{ID: "r1", Phase: tc.phase}},
			Traffic: blind, Added: make([]Workload, tc.added),
		}
		if _, err := (Begin{ReleaseID: "r2"}).begun(o); drivererr.Reason(err) != tc.want {
			t.Errorf("%s with %d added: %v", tc.phase, tc.added, err)
		}
	}
}
