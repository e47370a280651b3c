// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"math"
	"slices"
	"testing"
)

func TestWantedYieldsRunsOfMissingGroups(t *testing.T) {
	w := Workload{Name: "vllm", Replicas: math.MaxInt32, Size: 2}
	for _, i := range []int{2, 3, 7, math.MaxInt32} {
		w.Groups = append(w.Groups, Group{Index: i, Revision: "A"})
	}
	for _, tt := range []struct {
		from int
		want [][2]int // index and length
	}{
		{0, [][2]int{{0, 2}, {2, 1}, {3, 1}, {4, 3}, {7, 1}, {8, math.MaxInt32 - 8}}},
		{3, [][2]int{{3, 1}, {4, 3}, {7, 1}, {8, math.MaxInt32 - 8}}},
		{5, [][2]int{{5, 2}, {7, 1}, {8, math.MaxInt32 - 8}}},
		{100, [][2]int{{100, math.MaxInt32 - 100}}},
		{math.MaxInt32, nil},
	} {
		var got [][2]int
		for g, n := range w.Wanted(tt.from) {
			got = append(got, [2]int{g.Index, n})
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("from %d: %v, want %v", tt.from, got, tt.want)
		}
	}
	if !w.surges() {
		t.Error("the group at the index of replicas is no surge group")
	}
}
