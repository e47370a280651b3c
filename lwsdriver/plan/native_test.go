// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// TestSaved checks that changes by other clients are saved as the user's, except for the hold that the admission policy
// sets with a new template, possibly computed for another number of groups.
func TestSaved(t *testing.T) {
	const hold = 1000000
	for _, tc := range []struct {
		name             string
		set, found, want rolling
		replicas         int
	}{
		{"as it was set", rollingOf(0, "25%", "0"), rollingOf(0, "25%", "0"), rollingOf(0, "25%", "1"), 8},
		{"edited", rollingOf(0, "25%", "0"), rollingOf(0, "50%", "0"), rollingOf(0, "50%", "1"), 8},
		{"held", rollingOf(0, "25%", "1"), rollingOf(hold, "25%", "0"), rollingOf(0, "25%", "1"), 8},
		{"held with one group", rollingOf(0, "25%", "1"), rollingOf(hold, "1", "0"), rollingOf(0, "25%", "1"), 1},
		{"held with one group, then scaled", rollingOf(0, "25%", "1"), rollingOf(hold, "1", "0"), rollingOf(0, "25%", "1"), 8},
		{"held as it was, then scaled to none", rollingOf(0, "100%", "0"), rollingOf(hold, "100%", "0"), rollingOf(0, "25%", "1"), 0},
		{"held and edited", rollingOf(0, "25%", "1"), rollingOf(hold, "2", "0"), rollingOf(0, "2", "1"), 8},
	} {
		o := Observation{
			Policy: record.Policy{Style: pb.Style_STYLE_BLUE_GREEN},
			Stable: Workload{Replicas: tc.replicas, Rolling: tc.found},
			Record: &record.Record{Saved: rollingOf(0, "25%", "1"), Set: &tc.set, Release: &record.Release{Phase: record.Promoting}},
		}
		if got := Saved(o); !record.SameRolling(got, tc.want) {
			t.Errorf("%s: saved %s, want %s", tc.name, describeRolling(got), describeRolling(tc.want))
		}
	}
}

func TestTolerated(t *testing.T) {
	for _, tt := range []struct {
		unavailable    string
		replicas, want int
	}{{"1", 4, 1}, {"2", 4, 2}, {"50%", 5, 2}, {"0", 4, 1}, {"10%", 4, 1}, {"100%", 4, 4}, {"1", 0, 1}} {
		assert.Equal(t, tt.want, Tolerated(rollingOf(0, tt.unavailable, "1"), tt.replicas), "%s of %d", tt.unavailable, tt.replicas)
	}
}
