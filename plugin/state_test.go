// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// SPEC rule 6: a state of a newer contract is not settled, so the release that it is about is in flight.
func TestStatesOfANewerContract(t *testing.T) {
	const newer = pb.State(99)
	assert.False(t, Settled(newer), "an unknown state is settled")
	assert.True(t, InFlight(&pb.BatchContext{ReleaseId: "r1", State: newer}), "a release in an unknown state is not in flight")
}

// Every state of the contract is either the end of a release or part of it.
func TestInFlight(t *testing.T) {
	over := []pb.State{
		pb.State_STATE_UNSPECIFIED, pb.State_STATE_UNMANAGED, pb.State_STATE_COMPLETED, pb.State_STATE_ROLLED_BACK,
		pb.State_STATE_NOTHING_TO_RELEASE,
	}
	for value := range pb.State_name {
		state := pb.State(value)
		assert.Equal(t, !slices.Contains(over, state), InFlight(&pb.BatchContext{ReleaseId: "r1", State: state}), "%s: in flight", state)
		assert.False(t, InFlight(&pb.BatchContext{State: state}), "%s: no release is in flight", state)
	}
}

func TestWorkloadNames(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ kind, name, object string }{
		{"", "llm", "LeaderWorkerSet llm"},
		{KindLeaderWorkerSet, "llm", "LeaderWorkerSet llm"},
		{KindDisaggregatedSet, "disaggregatedset/llm", "DisaggregatedSet llm"},
	} {
		name, err := NameFor(tc.kind, "llm")
		ref := RefOf("ns", name)
		assert.True(t, err == nil && name == tc.name && NameOf(ref) == name && ObjectOf(ref) == tc.object && ref.GetNamespace() == "ns",
			"kind %q: name %q, workload %v, %v", tc.kind, name, ref, err)
	}
	_, err := NameFor("StatefulSet", "llm")
	assert.ErrorContains(t, err, "want LeaderWorkerSet or DisaggregatedSet")
}
