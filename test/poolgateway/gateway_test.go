// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package poolgateway

import (
	"math"
	"testing"
)

func TestSharesAreExactToOneRequest(t *testing.T) {
	t.Parallel()
	for _, weights := range [][]int{{90, 10}, {50, 50}, {0, 100}, {1}, {875, 125}, {1, 2, 4}} {
		table := &Table{}
		sum := 0
		for _, weight := range weights {
			table.backends = append(table.backends, &backend{weight: weight})
			sum += weight
		}
		got := map[*backend]int{}
		for n := 1; n <= 2000; n++ {
			got[table.next()]++
			for _, b := range table.backends {
				if want := float64(n) * float64(b.weight) / float64(sum); math.Abs(float64(got[b])-want) >= 1 {
					t.Fatalf("of %d requests by %v a pool got %d, want %g", n, weights, got[b], want)
				}
			}
		}
	}
}

func TestNoPoolWithoutWeight(t *testing.T) {
	t.Parallel()
	table := &Table{backends: []*backend{{pool: "a"}}}
	if b := table.next(); b != nil {
		t.Errorf("chose %v", b)
	}
}
