// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"time"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
)

// steadyAfter is how long a group that was lost must at least be ready again before that counts as over.
const steadyAfter = 10 * time.Second

// groupMemory is what the pods of a group don't tell any more. It is in memory only: a driver that starts anew takes
// what the pods' conditions say, so a group that flaps may then look as if it had just begun to.
type groupMemory struct {
	// firstReady is when the group was first ready at firstRevision.
	firstReady    time.Time
	firstRevision string
	// lostAt is since when the group has not been ready but for moments. Zero: it is ready.
	lostAt time.Time
	// readySince is plan.Group.ReadySince as of the last look, zero if the group was not ready then.
	readySince time.Time
	// restarts is how often the driver has restarted the group while it was at restartedAt, a revision.
	restarts    int
	restartedAt string
}

func (m *groupMemory) restarted(revision string) {
	if m.restartedAt != revision {
		m.restarts, m.restartedAt = 0, revision
	}
	m.restarts++
}

// update takes in how the group is now, broken since its pods say so, and adds to it how it was. It reports whether the
// answer stays the same until one of the pods changes.
func (m *groupMemory) update(g *plan.Group, broken, now time.Time, minReady time.Duration) (final bool) {
	if g.Ready {
		m.ready(g, now, minReady)
	} else {
		m.notReady(broken, now, minReady)
	}
	if m.firstRevision == g.Revision {
		g.FirstReady = m.firstReady
	}
	g.LostAt = m.lostAt
	switch g.Revision {
	case "":
	case m.restartedAt:
		g.Restarts = m.restarts
	default:
		m.restarts, m.restartedAt = 0, ""
	}
	return !g.Ready || (!g.FirstReady.IsZero() && m.lostAt.IsZero())
}

func (m *groupMemory) ready(g *plan.Group, now time.Time, minReady time.Duration) {
	m.readySince = g.ReadySince
	if m.firstRevision != g.Revision && now.Sub(g.ReadySince) >= minReady {
		m.firstReady, m.firstRevision = g.ReadySince.Add(minReady), g.Revision
	}
	if m.steady(now, minReady) {
		m.lostAt = time.Time{}
	}
}

// notReady notes when the group was lost, unless it already was and has not been ready for long since.
func (m *groupMemory) notReady(broken, now time.Time, minReady time.Duration) {
	if m.lostAt.IsZero() || m.steady(now, minReady) {
		m.lostAt = now
		if !broken.IsZero() && broken.Before(now) && !broken.Before(m.readySince) {
			m.lostAt = broken
		}
	}
	m.readySince = time.Time{}
}

// steady reports whether the group has been ready for so long that, if it is lost again, it is lost anew. Nobody may have
// looked in between.
func (m *groupMemory) steady(now time.Time, minReady time.Duration) bool {
	return !m.readySince.IsZero() && now.Sub(m.readySince) >= max(minReady, steadyAfter)
}
