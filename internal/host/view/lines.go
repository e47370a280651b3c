// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Lines prints one line per change, without control characters: for logs and pipelines.
type Lines struct {
	w     io.Writer
	start time.Time
	// named is true if lines begin with the workload's name.
	named bool
	stop  func()

	mu      sync.Mutex
	changes map[string]*changes
}

// NewLines returns a printer to w. Times are relative to start. Lines about several workloads have to be named.
func NewLines(w io.Writer, start time.Time, named bool) *Lines {
	l := &Lines{w: w, start: start, named: named, changes: map[string]*changes{}}
	l.stop = everySecond(func(now time.Time) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, name := range slices.Sorted(maps.Keys(l.changes)) {
			l.print(now, name, l.changes[name].due(now))
		}
	})
	return l
}

// Observe prints what is new in an event.
func (l *Lines) Observe(e host.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.observe(e)
}

// End prints the last event of a workload.
func (l *Lines) End(e host.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.observe(e)
	delete(l.changes, plugin.WorkloadKey(e.Context.GetWorkload()))
}

func (l *Lines) observe(e host.Event) {
	if e.Context == nil {
		l.print(e.Time, "", []string{messageLine(e)})
		return
	}
	name := plugin.WorkloadKey(e.Context.GetWorkload())
	if l.changes[name] == nil {
		l.changes[name] = &changes{}
	}
	l.print(e.Time, name, l.changes[name].lines(e))
}

// Close stops it. It must be called once.
func (l *Lines) Close() { l.stop() }

func (l *Lines) print(now time.Time, name string, lines []string) {
	for _, line := range lines {
		if l.named && name != "" {
			line = name + "  " + line
		}
		_, _ = fmt.Fprintln(l.w, withTime(now.Sub(l.start), line))
	}
}

// withTime prefixes a line with a time.
func withTime(elapsed time.Duration, line string) string {
	return fmt.Sprintf("%6s  %s", Age(elapsed), line)
}

// everySecond calls a function each second in the background until stop, which waits for a call in progress and must be called once.
func everySecond(call func(now time.Time)) (stop func()) {
	ended := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-ended:
				return
			case now := <-ticker.C:
				call(now)
			}
		}
	})
	return func() {
		close(ended)
		running.Wait()
	}
}

// transientGrace is how long a group may be unready for a transient reason before that is reported.
const transientGrace = 10 * time.Second

// Transient reports whether a reason is a phase that every new or replaced group goes through.
func Transient(reason string) bool {
	return slices.Contains([]string{
		"PodMissing", "LeaderMissing", "Starting", "NotReady", "ContainersNotReady", "ReadinessGatesNotReady",
		"MixedRevisions", "WorkerLeftOver", "Terminating", "Removed",
	}, reason)
}

// EventStatus is a context of a release that this process does not drive.
const EventStatus host.EventKind = "status"

// StatusEvent returns the event of a context.
func StatusEvent(c *pb.BatchContext) host.Event {
	return host.Event{Kind: EventStatus, Time: time.Now(), Message: c.GetMessage(), Context: c}
}

// What only a watch reports.
const (
	// EventGone: a workload is no longer under hold.
	EventGone host.EventKind = "gone"
	// EventIdle: no release is running.
	EventIdle host.EventKind = "idle"
	// EventReconnected: the driver answers again.
	EventReconnected host.EventKind = "reconnected"
)

// changes reports each change once.
type changes struct {
	// progress is the progressKey of the last context.
	progress string
	// told is when the last line about a rollback or a beginning was printed. Zero means that there is none. stepping is true once a context
	// has it, and waiting is the line about its step, until it lasts.
	told     time.Time
	stepping bool
	waiting  string
	// groups are those of the last context with groups. Nil means that there was none.
	groups []*groupChanges
}

// groupChanges is a group with the reasons that were reported.
type groupChanges struct {
	*pb.Group

	// since is when the group was first observed with this reason.
	since time.Time
	// reported are the reasons that were reported since the group was last ready.
	reported []string
}

// lines returns what is new in an event.
func (c *changes) lines(e host.Event) []string {
	if e.Kind != host.EventProgress && e.Kind != EventStatus {
		if e.Kind == host.EventRollingBack {
			c.told = e.Time
		}
		// The event's own message says more than the line that waits.
		c.waiting = ""
		return []string{messageLine(e)}
	}
	switch state := e.Context.GetState(); {
	case state == pb.State_STATE_ROLLING_BACK, state == pb.State_STATE_PREPARING, state == pb.State_STATE_HOLDING && e.Kind == host.EventProgress:
		return c.step(e)
	case !c.told.IsZero() && !c.stepping:
		return nil // what the release was in before the rollback
	}
	c.told, c.stepping, c.waiting = time.Time{}, false, ""
	lines := c.setGroups(e.Context.GetGroups(), e.Time)
	before := c.progress
	c.progress = progressKey(e.Context)
	if c.progress != before && (e.Kind == EventStatus || !hostAnnounces(e.Context)) {
		lines = append(lines, Progress(e.Context))
	}
	return append(lines, c.unready(e.Time)...)
}

// step returns the lines of a context in a rollback or a beginning. Both have many short steps, of which those that last are reported. The
// driver names the group that it waits for, so that groups have no lines.
func (c *changes) step(e host.Event) []string {
	c.groups, c.stepping = nil, true
	switch state := e.Context.GetState(); {
	case !c.told.IsZero():
	case state == pb.State_STATE_ROLLING_BACK && (e.Kind == EventStatus || c.progress == ""):
		c.told = e.Time.Add(-transientGrace) // it began before this run, or no host announces it here
	case state == pb.State_STATE_ROLLING_BACK, state == pb.State_STATE_PREPARING:
		c.told = e.Time
	}
	if now := Progress(e.Context); now != c.progress {
		c.progress, c.waiting = now, now
	}
	return c.due(e.Time)
}

// due returns the lines that time alone makes due.
func (c *changes) due(now time.Time) []string {
	if c.waiting != "" && now.Sub(c.told) >= transientGrace {
		line := c.waiting
		c.waiting, c.told = "", now
		return []string{line}
	}
	return c.unready(now)
}

// hostAnnounces reports whether the host that drives the release has an event of its own for this state.
func hostAnnounces(c *pb.BatchContext) bool {
	return slices.Contains([]pb.State{
		pb.State_STATE_COMPLETED, pb.State_STATE_ROLLED_BACK, pb.State_STATE_NOTHING_TO_RELEASE, pb.State_STATE_FAILED,
	}, c.GetState())
}

// messageLine returns an event's own message.
func messageLine(e host.Event) string {
	switch e.Kind {
	case host.EventWarning:
		return Other.Render("warning:") + " " + OneLine(e.Message)
	case host.EventFailed, host.EventGateFailed:
		return Alert.Render(OneLine(e.Message))
	default:
		return OneLine(e.Message)
	}
}

// setGroups sets the groups, and returns a line for each that became ready. Groups of the first context have none.
func (c *changes) setGroups(groups []*pb.Group, now time.Time) []string {
	if len(groups) == 0 {
		return nil
	}
	var lines []string
	next := make([]*groupChanges, 0, len(groups))
	for _, g := range groups {
		was := c.group(g)
		is := &groupChanges{Group: g, since: now}
		if was != nil && was.GetReason() == g.GetReason() {
			is.since = was.since
		}
		switch {
		case !g.GetReady() && was != nil:
			is.reported = was.reported
		case g.GetReady() && c.groups != nil && becameReady(was, g):
			lines = append(lines, fmt.Sprintf("group %d ready (%s)", g.GetIndex(), g.GetLeader()))
		}
		next = append(next, is)
	}
	c.groups = next
	return lines
}

// group returns the last state of a group, or nil.
func (c *changes) group(g *pb.Group) *groupChanges {
	for _, p := range c.groups {
		if p.GetLeader() == g.GetLeader() { // a handover changes the roles
			return p
		}
	}
	return nil
}

// becameReady reports whether g, which is ready, is new at the update revision, or was reported as unready.
func becameReady(was *groupChanges, g *pb.Group) bool {
	if was == nil {
		return g.GetUpdated()
	}
	return g.GetUpdated() && (!was.GetReady() || !was.GetUpdated()) || len(was.reported) > 0
}

// unready returns why groups are not ready, each reason once until the group is ready: an error at once, a transient reason
// after the grace.
func (c *changes) unready(now time.Time) []string {
	var lines []string
	for _, p := range c.groups {
		reason := p.GetReason()
		if p.GetReady() || reason == "" || slices.Contains(p.reported, reason) ||
			Transient(reason) && now.Sub(p.since) < transientGrace {
			continue
		}
		p.reported = append(p.reported, reason)
		lines = append(lines, fmt.Sprintf("%s group %d: %s", roleWord(p.GetRole()), p.GetIndex(), Problem(p.Group)))
	}
	return lines
}
