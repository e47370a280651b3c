// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
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
		assert.True(t, slices.Equal(got, tt.want), "from %d: %v, want %v", tt.from, got, tt.want)
	}
	assert.True(t, w.hasSurge(), "the group at the index of replicas is no surge group")
}

// A missing group of a DisaggregatedSet is named by its child, if that exists.
func TestMissingGroupOfChild(t *testing.T) {
	t.Parallel()
	w := Workload{Name: "llm", Replicas: 4, Parts: []Part{{"llm-0-a-prefill", 2}, {"", 1}, {"llm-2-a-prefill", 1}}}
	for index, want := range []string{"llm-0-a-prefill-0", "llm-0-a-prefill-1", "llm-2", "llm-2-a-prefill-0", "llm-4"} {
		g := w.MissingGroup(index)
		assert.True(t, g.Leader == want && g.Pod == want && g.Index == index, "group %d: %+v, want %s", index, g, want)
	}
}
