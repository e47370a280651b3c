// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"slices"
	"time"

	"github.com/lockstep-rollouts/lockstep/internal/host"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// patience is how long what every new or replaced group goes through may keep it from being ready before that is worth
// a line.
const patience = 10 * time.Second

// everyday says whether a reason is what every new or replaced group goes through.
func everyday(reason string) bool {
	switch reason {
	case "PodMissing", "LeaderMissing", "Starting", "NotReady", "ContainersNotReady", "ReadinessGatesNotReady",
		"MixedRevisions", "Terminating":
		return true
	default:
		return false
	}
}

// EventStatus is a context that was looked at, not one of a release that this process drives.
const EventStatus host.EventKind = "status"

// EventPlan is a dry run.
const EventPlan host.EventKind = "plan"

// diary remembers what was said, so that each line is news.
type diary struct {
	// standing is that of the last line of Progress.
	standing string
	// groups are as the newest context has them. Nil: there was none with groups yet.
	groups []*page
}

// page is one group, and what was said about it.
type page struct {
	*pb.Group

	// since is when the group was first seen with this reason.
	since time.Time
	// told are the reasons that were given since the group was last ready.
	told []string
}

// lines are what is to be said about an event.
func (d *diary) lines(e host.Event) []string {
	if e.Kind != host.EventProgress && e.Kind != EventStatus {
		return []string{told(e)}
	}
	lines := d.turn(e.Context.GetGroups(), e.Time)
	was := d.standing
	d.standing = standing(e.Context)
	if d.standing != was && (e.Kind == EventStatus || !announced(e.Context)) {
		lines = append(lines, Progress(e.Context))
	}
	return append(lines, d.overdue(e.Time)...)
}

// announced says whether a host that drives the release is about to tell of this state itself.
func announced(c *pb.BatchContext) bool {
	switch c.GetState() {
	case pb.State_STATE_COMPLETED, pb.State_STATE_ROLLED_BACK, pb.State_STATE_NOTHING_TO_RELEASE, pb.State_STATE_FAILED:
		return true
	default:
		return false
	}
}

// told is an event's own message.
func told(e host.Event) string {
	if e.Kind == host.EventWarning || e.Kind == host.EventFailed {
		return string(e.Kind) + ": " + OneLine(e.Message)
	}
	return OneLine(e.Message)
}

// turn takes the groups in, and says which became ready. What the first context finds ready is no news.
func (d *diary) turn(groups []*pb.Group, now time.Time) []string {
	if len(groups) == 0 {
		return nil
	}
	var lines []string
	pages := make([]*page, 0, len(groups))
	for _, g := range groups {
		was := d.page(g)
		is := &page{Group: g, since: now}
		if was != nil && was.GetReason() == g.GetReason() {
			is.since = was.since
		}
		switch {
		case !g.GetReady() && was != nil:
			is.told = was.told
		case g.GetReady() && d.groups != nil && becameReady(was, g):
			lines = append(lines, fmt.Sprintf("group %d ready (%s)", g.GetIndex(), g.GetLeader()))
		}
		pages = append(pages, is)
	}
	d.groups = pages
	return lines
}

// page finds what is known about a group. Nil: nothing.
func (d *diary) page(g *pb.Group) *page {
	for _, p := range d.groups {
		if p.GetRole() == g.GetRole() && p.GetIndex() == g.GetIndex() {
			return p
		}
	}
	return nil
}

// becameReady says whether it is news that g is ready: it is at the update revision and was not ready there, or people
// were told that it was not.
func becameReady(was *page, g *pb.Group) bool {
	if was == nil {
		return g.GetUpdated()
	}
	return g.GetUpdated() && (!was.GetReady() || !was.GetUpdated()) || len(was.told) > 0
}

// overdue says what keeps groups from being ready: at once if it is a real obstacle, otherwise once it has lasted, and
// each reason once until the group is ready.
func (d *diary) overdue(now time.Time) []string {
	var lines []string
	for _, p := range d.groups {
		reason := p.GetReason()
		if p.GetReady() || reason == "" || slices.Contains(p.told, reason) ||
			everyday(reason) && now.Sub(p.since) < patience {
			continue
		}
		p.told = append(p.told, reason)
		lines = append(lines, fmt.Sprintf("%s group %d: %s", RoleWord(p.GetRole()), p.GetIndex(), Problem(p.Group)))
	}
	return lines
}
