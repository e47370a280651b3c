// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"
)

const (
	// pollInterval is the time between an answer and the next request to the same leader.
	pollInterval = time.Second
	// pollTimeout bounds one request.
	pollTimeout = 2 * time.Second
	// drainPatience is how long a drain is watched without being asked about, drainRecheck how often to ask therefore.
	drainPatience = 10 * time.Second
	drainRecheck  = 3 * time.Second
	// firstLook is how long a leader's first answer is waited for although the timeout is over, as it is for a driver that
	// was away: better late than with requests of which nobody knew.
	firstLook = 5 * time.Second
	// metricsFormat is the one format that is understood.
	metricsFormat = "text/plain;version=0.0.4"
)

// draining is the drain of an owner. The Prober's lock guards it.
type draining struct {
	policy  Drain
	since   time.Time
	asked   time.Time           // by the caller
	watched map[string]*watched // by the leader's UID
	// end is the answer once it is Done, which then is final for these leaders.
	end    Progress
	ending map[string]bool
}

// watched is a leader whose metric is read.
type watched struct {
	leader Leader
	stop   context.CancelFunc
	began  time.Time
	last   reading
}

// reading is what a leader told. The zero value: nothing so far.
type reading struct {
	running float64
	gone    bool
	problem string // why running is not known, or why the leader is gone
	made    bool
}

// Drain says whether leaders which lost their traffic at the time since, the same in every call, have ended their
// requests. First the period
// passes; then, with a metric, the leaders are watched until it reads 0 on all of them at the same time, or until the
// timeout. A leader that refuses connections, to whose address there is no route, or that has no address has no requests;
// one that answers in any other way than with the metric may have.
//
// The leaders are watched while somebody asks. An answer of Done is final for those leaders, policy and since, until
// [Prober.Forget]. An owner has one drain at a time: another policy or since takes the place of the one before. The
// driver may have been away in the meantime: past the timeout each leader is still asked once.
func (p *Prober) Drain(owner string, leaders []Leader, d Drain, since time.Time) Progress {
	now := time.Now()
	d.Timeout = cmp.Or(d.Timeout, DefaultDrainTimeout)
	end := since.Add(d.Period)
	switch {
	case now.Before(end):
		return Progress{Recheck: end.Sub(now),
			Message: fmt.Sprintf("requests in flight have until %s to end (drain period %s)", clock(end), d.Period)}
	case len(leaders) == 0:
		return Progress{State: Done, Message: "no leader is left to drain"}
	case d.Metric == "":
		return Progress{State: Done, Message: fmt.Sprintf("the drain period of %s is over", d.Period)}
	}
	answer, ended := p.drain(owner, leaders, d, since)
	if ended {
		level := slog.LevelInfo
		if answer.Forced {
			level = slog.LevelWarn
		}
		p.log.Log(p.ctx, level, "drained", slog.String("owner", owner), slog.Bool("forced", answer.Forced),
			slog.String("message", answer.Message))
	}
	return answer
}

// drain is Drain from the end of the period on. It says whether the drain has ended with this very call.
func (p *Prober) drain(owner string, leaders []Leader, d Drain, since time.Time) (answer Progress, ended bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return closing, false
	}
	o := p.owner(owner)
	if o.draining == nil || o.draining.policy != d || !o.draining.since.Equal(since) {
		o.draining.release()
		o.draining = &draining{policy: d, since: since, watched: map[string]*watched{}}
	}
	t := o.draining
	if t.ended(leaders) {
		return t.end, false
	}
	t.asked = time.Now()
	p.watch(o, t, leaders)
	answer = t.judge(leaders)
	if answer.State != Done {
		return answer, false
	}
	t.end, t.ending = answer, make(map[string]bool, len(leaders))
	for _, l := range leaders {
		t.ending[l.UID] = true
	}
	t.release()
	return answer, true
}

// release ends the watching of all leaders.
func (t *draining) release() {
	if t == nil {
		return
	}
	for _, w := range t.watched {
		w.stop()
	}
	clear(t.watched)
}

// ended says whether all these leaders were found drained before.
func (t *draining) ended(leaders []Leader) bool {
	for _, l := range leaders {
		if !t.ending[l.UID] {
			return false
		}
	}
	return true
}

// watch has these leaders watched and no others. The lock is held.
func (p *Prober) watch(o *owner, t *draining, leaders []Leader) {
	wanted := make(map[string]bool, len(leaders))
	for _, l := range leaders {
		wanted[l.UID] = true
		w := t.watched[l.UID]
		if w == nil {
			ctx, stop := context.WithCancel(o.ctx)
			w = &watched{stop: stop, began: t.asked}
			t.watched[l.UID] = w
			p.work.Go(func() { p.poll(ctx, o, t, w) })
		}
		w.leader = l
	}
	for uid, w := range t.watched {
		if !wanted[uid] {
			w.stop()
			delete(t.watched, uid)
		}
	}
}

// judge is the answer for these leaders, all of which are watched.
func (t *draining) judge(leaders []Leader) Progress {
	deadline := t.since.Add(t.policy.Period + t.policy.Timeout)
	left := time.Until(deadline)
	sum := tally{metric: t.policy.Metric, leaders: len(leaders)}
	for _, l := range leaders {
		w := t.watched[l.UID]
		sum.add(l, w.last)
		if !w.last.made {
			left = max(left, firstLook-time.Since(w.began))
		}
	}
	switch {
	case sum.drained():
		return Progress{State: Done, Message: sum.success()}
	case left <= 0:
		return Progress{State: Done, Forced: true,
			Message: fmt.Sprintf("went on at the drain timeout of %s although %s", t.policy.Timeout, sum.rest())}
	default:
		return Progress{State: sum.state(), Recheck: min(drainRecheck, left),
			Message: fmt.Sprintf("%s; waiting until %s at the latest", sum.rest(), clock(deadline))}
	}
}

// poll reads the metric of a leader until nobody asks or ctx ends.
func (p *Prober) poll(ctx context.Context, o *owner, t *draining, w *watched) {
	defer w.stop()
	for o.drainSlots.take(ctx) {
		leader, wanted := p.beginPoll(o, t, w)
		if !wanted {
			o.drainSlots.give()
			return
		}
		got := p.read(ctx, leader, t.policy)
		o.drainSlots.give()
		if !p.endPoll(ctx, o, w, got) || !pause(ctx, pollInterval) {
			return
		}
	}
}

// beginPoll returns whom to ask, or false if nobody wants to know any longer; what was read is then forgotten, since it
// would be out of date for whoever asks next.
func (p *Prober) beginPoll(o *owner, t *draining, w *watched) (Leader, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(t.asked) <= drainPatience {
		return w.leader, true
	}
	if t.watched[w.leader.UID] == w {
		delete(t.watched, w.leader.UID)
	}
	if o.draining == t && len(t.watched) == 0 && t.ending == nil {
		o.draining = nil
		p.tidy(o)
	}
	return Leader{}, false
}

// endPoll notes what was read, and says whether to go on.
func (p *Prober) endPoll(ctx context.Context, o *owner, w *watched, got reading) bool {
	p.mu.Lock()
	if ctx.Err() != nil { // the leader is watched no longer
		p.mu.Unlock()
		return false
	}
	leader, changed := w.leader, w.last != got
	w.last = got
	p.mu.Unlock()
	if changed {
		p.log.Debug("drain", slog.String("owner", o.name), slog.String("leader", leader.String()),
			slog.Float64("running", got.running), slog.Bool("gone", got.gone), slog.String("problem", got.problem))
		p.changed(o.name)
	}
	return true
}

// read asks a leader for its metric.
func (p *Prober) read(ctx context.Context, l Leader, d Drain) reading {
	got := reading{made: true}
	r := request{endpoint: d.Endpoint, accept: metricsFormat, timeout: pollTimeout}
	err := p.ask(ctx, l, r, func(page io.Reader) (err error) {
		got.running, err = readMetric(page, d.Metric)
		return err
	})
	if err != nil {
		got.problem, got.gone = fmt.Sprintf("%s: %v", r, err), gone(err)
	}
	return got
}
