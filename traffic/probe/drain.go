// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-rollouts/lockstep/plugin/informer/guard"
)

const (
	// pollInterval is the time between a response and the next request to the same leader.
	pollInterval = time.Second
	// pollTimeout bounds one request.
	pollTimeout = 2 * time.Second
	// firstReadTimeout is how long to wait for a leader's first reading even after the drain timeout, which may have passed
	// while no driver was running: without it, unknown requests in flight would be dropped.
	firstReadTimeout = 5 * time.Second
	// metricsFormat is the only supported format.
	metricsFormat = "text/plain;version=0.0.4"
)

// draining is the drain of an owner. The Prober's lock guards it.
type draining struct {
	policy  Drain
	since   time.Time
	watched map[string]*watched // by the leader's UID
	// final is the Progress once it is Done, for the leaders in drained.
	final   Progress
	drained map[string]bool
}

// watched is a leader whose metric is read.
type watched struct {
	leader  Leader
	stop    context.CancelFunc
	started time.Time
	last    reading
}

// reading is the result of reading a leader's metric. The zero value means that no read has completed.
type reading struct {
	running     float64
	unreachable bool
	problem     string // why running is unknown, or why the leader is unreachable
	completed   bool
}

// Drain returns whether leaders that lost their traffic at the time since, the same in every call, have finished their
// requests. First the period passes; then, with a metric, the leaders are watched until it is 0 on all of them at the same
// time, or until the timeout. A leader that is not ready and refuses connections, is not routable or has no address has no
// requests; any other one without the metric may have.
//
// The leaders are watched until [Prober.Keep] or [Prober.Forget]. Until then Done is final for these leaders, policy and since.
// An owner has one drain at a time: another policy or since replaces it. After the timeout, for example if no driver was
// running, each leader is still read once.
func (p *Prober) Drain(owner string, leaders []Leader, d Drain, since time.Time) Progress {
	now := time.Now()
	d.Timeout = cmp.Or(d.Timeout, DefaultDrainTimeout)
	end := since.Add(d.Period)
	switch {
	case now.Before(end):
		// A request that a gateway has sent may not be in the leader's metric yet.
		return Progress{Recheck: end.Sub(now),
			Message: fmt.Sprintf("waiting until %s for requests in flight (drain period %s)", formatTime(end), d.Period)}
	case len(leaders) == 0:
		return Progress{State: Done, Message: "no leader is left to drain"}
	case d.Metric == "":
		return Progress{State: Done, Message: fmt.Sprintf("the drain period of %s is over", d.Period)}
	}
	progress, ended := p.drain(owner, leaders, d, since)
	if ended {
		level := slog.LevelInfo
		if progress.Forced {
			level = slog.LevelWarn
		}
		p.log.Log(p.ctx, level, "drained", slog.String("owner", owner), slog.Bool("forced", progress.Forced),
			slog.String("message", progress.Message))
	}
	return progress
}

// drain is Drain after the period. It reports whether the drain has ended with this call.
func (p *Prober) drain(owner string, leaders []Leader, d Drain, since time.Time) (progress Progress, ended bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return closing, false
	}
	o := p.owner(owner)
	if o.draining == nil || o.draining.policy != d || !o.draining.since.Equal(since) {
		o.draining.stop()
		o.draining = &draining{policy: d, since: since, watched: map[string]*watched{}}
	}
	t := o.draining
	// Groups are deleted one after another, and the rest is asked for again. Their drain must not start anew.
	if t.ended(leaders) {
		return t.final, false
	}
	p.watch(o, t, leaders)
	progress = t.progress(leaders)
	if progress.State != Done {
		return progress, false
	}
	t.final, t.drained = progress, make(map[string]bool, len(leaders))
	// The result is for these leaders only. One that is added later has the drain start again.
	for _, l := range leaders {
		t.drained[l.UID] = true
	}
	t.stop()
	return progress, true
}

// stop stops watching all leaders.
func (t *draining) stop() {
	if t == nil {
		return
	}
	for _, w := range t.watched {
		w.stop()
	}
	clear(t.watched)
}

// ended reports whether the drain has ended for all these leaders.
func (t *draining) ended(leaders []Leader) bool {
	return !slices.ContainsFunc(leaders, func(l Leader) bool { return !t.drained[l.UID] })
}

// watch starts and stops watching, so that exactly these leaders are watched. The lock is held.
func (p *Prober) watch(o *owner, t *draining, leaders []Leader) {
	wanted := make(map[string]bool, len(leaders))
	for _, l := range leaders {
		wanted[l.UID] = true
		w := t.watched[l.UID]
		if w == nil {
			ctx, stop := context.WithCancel(o.ctx)
			w = &watched{stop: stop, started: time.Now()}
			t.watched[l.UID] = w
			p.work.Go(func() { _ = guard.Call(p.log, "drain", l.String(), func() { p.poll(ctx, o, t, w) }) })
		}
		// The address of a leader may appear after the watch has begun.
		w.leader = l
	}
	for uid, w := range t.watched {
		if !wanted[uid] {
			w.stop()
			delete(t.watched, uid)
		}
	}
}

// progress returns the progress of these leaders, all of which are watched.
func (t *draining) progress(leaders []Leader) Progress {
	deadline := t.since.Add(t.policy.Period + t.policy.Timeout)
	left := time.Until(deadline)
	sum := tally{metric: t.policy.Metric, leaders: len(leaders)}
	for _, l := range leaders {
		w := t.watched[l.UID]
		sum.add(l, w.last)
		if !w.last.completed {
			left = max(left, firstReadTimeout-time.Since(w.started))
		}
	}
	switch {
	case sum.drained():
		return Progress{State: Done, Message: sum.success()}
	case left <= 0:
		// Hung requests must not hold the capacity for good, so the timeout ends the drain.
		return Progress{State: Done, Forced: true,
			Message: fmt.Sprintf("stopped waiting at the drain timeout of %s although %s", t.policy.Timeout, sum.remainingText())}
	default:
		return Progress{State: sum.state(), Recheck: left,
			Message: fmt.Sprintf("%s; waiting until %s at the latest", sum.remainingText(), formatTime(deadline))}
	}
}

// poll reads the metric of a leader until ctx ends.
func (p *Prober) poll(ctx context.Context, o *owner, t *draining, w *watched) {
	defer w.stop()
	p.repeat(ctx, o, o.drainSlots, p.drainSlots, func() time.Duration {
		p.mu.Lock()
		leader := w.leader
		p.mu.Unlock()
		if !p.endPoll(ctx, o, w, p.read(ctx, leader, t.policy)) {
			return 0
		}
		return pollInterval
	})
}

// endPoll stores a reading, and reports whether to continue.
func (p *Prober) endPoll(ctx context.Context, o *owner, w *watched, got reading) bool {
	p.mu.Lock()
	if ctx.Err() != nil { // the leader is watched no longer
		p.mu.Unlock()
		return false
	}
	leader, changed := w.leader, w.last != got
	w.last = got
	p.mu.Unlock()
	// The callback must not run under the lock, which every poll takes.
	if changed {
		p.log.Debug("drain", slog.String("owner", o.name), slog.String("leader", leader.String()),
			slog.Float64("running", got.running), slog.Bool("unreachable", got.unreachable), slog.String("problem", got.problem))
		p.changed(o.name)
	}
	return true
}

// read requests a leader's metric.
func (p *Prober) read(ctx context.Context, l Leader, d Drain) reading {
	got := reading{completed: true}
	r := request{endpoint: d.Endpoint, accept: metricsFormat, timeout: pollTimeout}
	err := p.do(ctx, l, r, func(page io.Reader) (err error) {
		got.running, err = readMetric(page, d.Metric)
		return err
	})
	if err != nil {
		got.problem, got.unreachable = fmt.Sprintf("%s: %v", r, err), isUnreachable(err)
	}
	return got
}

// namesShown is the maximum number of leaders in a message.
const namesShown = 5

// tally summarizes the readings of a drain's leaders.
type tally struct {
	metric      string
	leaders     int
	zero        int
	total       float64
	running     []string // leaders with requests, and how many
	failed      []string // leaders whose metric can't be read, and why
	unread      []string // leaders without a first reading
	unreachable []string // leaders that accept no connections, and why
}

func (s *tally) add(l Leader, r reading) {
	switch {
	case !r.completed:
		s.unread = append(s.unread, l.Name)
	case r.unreachable && !l.Ready:
		s.unreachable = append(s.unreachable, fmt.Sprintf("%s (%s)", l.Name, r.problem))
	case r.problem != "":
		s.failed = append(s.failed, fmt.Sprintf("%s (%s)", l.Name, r.problem))
	case r.running > 0:
		s.total += r.running
		s.running = append(s.running, fmt.Sprintf("%g on %s", r.running, l.Name))
	default:
		s.zero++
	}
}

func (s *tally) drained() bool { return s.zero+len(s.unreachable) == s.leaders }

// state returns the state of a drain that has not ended.
func (s *tally) state() State {
	if len(s.failed) > 0 {
		return Failed
	}
	return Pending
}

// success returns the message of a drained tally.
func (s *tally) success() string {
	message := fmt.Sprintf("%s is 0 on %d of %d leaders", s.metric, s.zero, s.leaders)
	if len(s.unreachable) == 0 {
		return message
	}
	return message + "; " + unreachablePrefix + joinNames(s.unreachable)
}

const unreachablePrefix = "counted as drained because they accept no connections: "

// remainingText returns what a drain still waits for.
func (s *tally) remainingText() string {
	var parts []string
	if len(s.running) > 0 {
		parts = append(parts, fmt.Sprintf("%s is %g: %s", s.metric, s.total, joinNames(s.running)))
	}
	if len(s.failed) > 0 {
		parts = append(parts, fmt.Sprintf("%s can't be read on %s", s.metric, joinNames(s.failed)))
	}
	if len(s.unread) > 0 {
		parts = append(parts, "no response yet from "+joinNames(s.unread))
	}
	if len(s.unreachable) > 0 {
		parts = append(parts, unreachablePrefix+joinNames(s.unreachable))
	}
	return strings.Join(parts, "; ")
}

func joinNames(list []string) string {
	if len(list) <= namesShown {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:namesShown], ", "), len(list)-namesShown)
}
