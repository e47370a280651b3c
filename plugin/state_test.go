// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"slices"
	"testing"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// SPEC rule 6: a state of a newer contract is not settled, so the release that it is about is in flight.
func TestStatesOfANewerContract(t *testing.T) {
	const newer = pb.State(99)
	if Settled(newer) {
		t.Error("an unknown state is settled")
	}
	if !InFlight(&pb.BatchContext{ReleaseId: "r1", State: newer}) {
		t.Error("a release in an unknown state is not in flight")
	}
}

// Every state of the contract is either the end of a release or part of it.
func TestInFlight(t *testing.T) {
	over := []pb.State{
		pb.State_STATE_UNSPECIFIED, pb.State_STATE_UNMANAGED, pb.State_STATE_COMPLETED, pb.State_STATE_ROLLED_BACK,
		pb.State_STATE_NOTHING_TO_RELEASE,
	}
	for value := range pb.State_name {
		state := pb.State(value)
		if got, want := InFlight(&pb.BatchContext{ReleaseId: "r1", State: state}), !slices.Contains(over, state); got != want {
			t.Errorf("%s: in flight is %t", state, got)
		}
		if InFlight(&pb.BatchContext{State: state}) {
			t.Errorf("%s: no release is in flight", state)
		}
	}
}
