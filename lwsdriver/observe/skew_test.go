// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
)

// Kubelets whose clocks are an hour off make no group available earlier or later.
func TestSkewedKubelet(t *testing.T) {
	const minReady = time.Minute
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, skew := range []time.Duration{-time.Hour, 0, time.Hour} {
		var m groupMemory
		at := func(after time.Duration, ready bool) plan.Group {
			g := plan.Group{Ready: ready, Revision: "r"}
			if ready {
				g.ReadySince = noon.Add(skew)
			}
			m.update(&g, time.Time{}, noon.Add(after), minReady)
			return g
		}
		at(-10*time.Second, false)
		for _, seconds := range []time.Duration{1, 30, 49} {
			assert.True(t, at(seconds*time.Second, true).FirstReady.IsZero(), "skew %s: available after %d s", skew, seconds)
		}
		g := at(62*time.Second, true)
		assert.False(t, g.FirstReady.IsZero(), "skew %s: not available after 62 s: ready since %s", skew, g.ReadySince)
	}
}

// An API server whose clock was an hour ahead for a moment makes no group available an hour later.
func TestClockThatWasAhead(t *testing.T) {
	const minReady = time.Minute
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	var m groupMemory
	m.update(&plan.Group{Revision: "r"}, time.Time{}, noon.Add(time.Hour), minReady)
	for _, after := range []time.Duration{time.Second, 30 * time.Second, 62 * time.Second} {
		g := plan.Group{Ready: true, Revision: "r", ReadySince: noon}
		m.update(&g, time.Time{}, noon.Add(after), minReady)
		if available := !g.FirstReady.IsZero(); available != (after > minReady) || g.LostAt.After(noon.Add(after)) {
			t.Errorf("after %s: available %t, lost at %s", after, available, g.LostAt)
		}
	}
}
