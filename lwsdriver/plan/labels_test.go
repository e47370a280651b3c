// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// TestMark checks batch numbers. Canary groups count from the lowest index, the workload's own from the highest, in the
// order of their update; the batch is the first that includes the group.
func TestMark(t *testing.T) {
	for _, tt := range []struct {
		replicas int
		batches  []string
		want     string
	}{
		{4, []string{"25%", "50%", "100%"}, "[1 2 3 3]"},
		{8, []string{"25%", "50%", "100%"}, "[1 1 2 2 3 3 3 3]"},
		{3, []string{"1", "1", "3"}, "[1 3 3]"},
		{3, []string{"0", "3"}, "[2 2 2]"},
		{4, []string{"25%"}, "[1 1 1 1]"},
		{1, []string{"25%", "100%"}, "[1]"},
		{4, []string{"2", "3"}, "[1 1 2 2]"},
	} {
		o := Observation{Stable: Workload{Replicas: tt.replicas}, Policy: record.Policy{RolloutID: "k"}}
		for _, b := range tt.batches {
			o.Policy.Batches = append(o.Policy.Batches, quantity(b))
		}
		var got []int
		for i := range tt.replicas {
			got = append(got, o.rolloutOf(Group{Index: i}, i).Batch)
		}
		assert.Equal(t, tt.want, fmt.Sprint(got), "%d groups in batches %v: %v", tt.replicas, tt.batches, got)
	}
}
