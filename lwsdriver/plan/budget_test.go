// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"
)

func TestTolerated(t *testing.T) {
	for _, tt := range []struct {
		unavailable    string
		replicas, want int
	}{{"1", 4, 1}, {"2", 4, 2}, {"50%", 5, 2}, {"0", 4, 1}, {"10%", 4, 1}, {"100%", 4, 4}, {"1", 0, 1}} {
		if got := Tolerated(rollingOf(0, tt.unavailable, "1"), tt.replicas); got != tt.want {
			t.Errorf("%s of %d: %d, want %d", tt.unavailable, tt.replicas, got, tt.want)
		}
	}
}
