// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"strings"
	"time"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
)

// steadyAfter is how long a lost group must be ready again before it counts as recovered.
const steadyAfter = 10 * time.Second

// groupMemory is the history of a group that its pods no longer show. It is in memory only: after a restart the driver uses
// the pods' conditions, so a flapping group may then seem to have just been lost.
type groupMemory struct {
	// firstReady is when the group was first ready at firstRevision.
	firstReady    time.Time
	firstRevision string
	// lostAt is when the group was last lost, apart from short recoveries. Zero means that it is ready.
	lostAt time.Time
	// readySince is plan.Group.ReadySince in the last observation, zero if the group was not ready then. unreadyAt is when it was last
	// observed not to be ready.
	readySince, unreadyAt time.Time
	// restarts is how often the driver has restarted the group at revision restartedAt.
	restarts    int
	restartedAt string
	// exit is the last failure of a container. Nil means that none was observed.
	exit *exit
}

// recordExit records the failure of a container.
func (m *groupMemory) recordExit(e *exit) {
	if e != nil && (m.exit == nil || e.at.After(m.exit.at)) {
		m.exit = e
	}
}

func (m *groupMemory) countRestart(revision string) {
	if m.restartedAt != revision {
		m.restarts, m.restartedAt = 0, revision
	}
	m.restarts++
}

// update records the group's current state, broken since the time that its pods report, and adds its history to it. It reports
// whether the result stays valid until one of the pods changes.
func (m *groupMemory) update(g *plan.Group, broken, now time.Time, minReady time.Duration) (final bool) {
	// The API server's clock may have been ahead. The group must not wait until that time comes.
	for _, t := range []*time.Time{&m.lostAt, &m.readySince, &m.unreadyAt} {
		if t.After(now) {
			*t = now
		}
	}
	if g.Ready {
		// recordReady remembers the corrected time.
		m.correctReadySince(g, now)
		m.recordReady(g, now, minReady)
	} else {
		m.recordUnready(broken, now, minReady)
	}
	if m.firstRevision == g.Revision {
		g.FirstReady = m.firstReady
	}
	g.LostAt = m.lostAt
	if !g.Ready {
		g.Message += m.exitText(g)
	}
	switch g.Revision {
	case "":
		// Without a leader the revision is unknown, and the count stays.
	case m.restartedAt:
		g.Restarts = m.restarts
	default:
		m.restarts, m.restartedAt = 0, ""
	}
	// Time alone changes a ready group until minReady has passed, and until a loss is over.
	return !g.Ready || (!g.FirstReady.IsZero() && m.lostAt.IsZero())
}

// correctReadySince corrects the time since which a group has been ready. Kubelets report it, and their clocks may be wrong: it was not ready when it was observed
// not to be, and does not become so in the future.
func (m *groupMemory) correctReadySince(g *plan.Group, now time.Time) {
	switch {
	case g.ReadySince.Before(m.unreadyAt):
		g.ReadySince = m.unreadyAt
	case !g.ReadySince.After(now):
	case m.readySince.IsZero():
		// The kubelet's clock is ahead of ours: ready begins with the first observation of it.
		g.ReadySince = now
	default:
		g.ReadySince = m.readySince
	}
}

// exitText returns the failure of a container that the pods of a group do not show any more, or "" if there was none since the group was
// lost, or shortly before.
func (m *groupMemory) exitText(g *plan.Group) string {
	e := m.exit
	// An exit shortly before the loss may have caused it: LWS recreates a group after a container restarts.
	if e == nil || g.Revision != "" && g.Revision != e.revision || e.at.Before(m.lostAt.Add(-steadyAfter)) || strings.Contains(g.Message, exitCode) {
		return ""
	}
	return "; before, " + e.text
}

func (m *groupMemory) recordReady(g *plan.Group, now time.Time, minReady time.Duration) {
	m.readySince = g.ReadySince
	if m.firstRevision != g.Revision && now.Sub(g.ReadySince) >= minReady {
		m.firstReady, m.firstRevision = g.ReadySince.Add(minReady), g.Revision
	}
	if m.hasRecovered(now, minReady) {
		m.lostAt = time.Time{}
	}
}

// recordUnready records when the group was lost, unless it has been lost since without a steady recovery.
func (m *groupMemory) recordUnready(broken, now time.Time, minReady time.Duration) {
	if m.lostAt.IsZero() || m.hasRecovered(now, minReady) {
		m.lostAt = now
		// The pods know the time better than the observation, unless a wrong clock puts it in the future, or before
		// the group was last ready.
		if !broken.IsZero() && broken.Before(now) && !broken.Before(m.readySince) {
			m.lostAt = broken
		}
	}
	m.readySince, m.unreadyAt = time.Time{}, now
}

// hasRecovered reports whether the group has been ready for so long that another loss is a new one, even if it was not observed in
// between.
func (m *groupMemory) hasRecovered(now time.Time, minReady time.Duration) bool {
	return !m.readySince.IsZero() && now.Sub(m.readySince) >= max(minReady, steadyAfter)
}
