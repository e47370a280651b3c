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
	// firstPause and longestPause are the time before a failed warm-up is tried again, which doubles.
	firstPause   = time.Second
	longestPause = 30 * time.Second
	// warmPatience is how long a warm-up goes on without being asked about, warmRecheck how often to ask therefore.
	warmPatience = 2 * time.Minute
	warmRecheck  = 30 * time.Second
	// warmLimit bounds how much of an answer is read; the rest is cut off.
	warmLimit = 64 << 10
)

// warming is a leader that was asked to warm up. The Prober's lock guards it.
type warming struct {
	leader Leader
	policy WarmUp
	stop   context.CancelFunc
	asked  time.Time // by the caller
	now    step
	tries  int       // that have ended
	why    string    // the last try failed; empty if none did
	next   time.Time // only in step resting
}

// step is what a warming does at the moment.
type step int

const (
	queued step = iota
	asking
	resting
	warm
)

// Warm says whether a leader is warm. The first call about a leader begins the request in the background, and one that
// failed is made again after a pause, as long as somebody asks. A good answer is remembered until [Prober.Forget] or
// [Prober.Keep] drops it. Another policy is another question.
func (p *Prober) Warm(owner string, l Leader, w WarmUp) Progress {
	if w == (WarmUp{}) {
		return Progress{State: Done, Message: "no warm-up is asked for"}
	}
	w.Timeout = cmp.Or(w.Timeout, DefaultWarmUpTimeout)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return closing
	}
	o := p.owner(owner)
	e := o.warming[l.UID]
	if e != nil && e.policy != w {
		e.stop()
		delete(o.warming, l.UID)
		e = nil
	}
	if e == nil && l.Address == "" {
		p.tidy(o)
		return Progress{Message: fmt.Sprintf("leader %s: waiting for its address to make the warm-up request", l.Name)}
	}
	if e == nil {
		ctx, stop := context.WithCancel(o.ctx)
		e = &warming{policy: w, stop: stop}
		o.warming[l.UID] = e
		p.work.Go(func() { p.warm(ctx, o, e) })
	}
	e.leader, e.asked = l, time.Now()
	return e.progress()
}

// progress is the answer. The lock is held.
func (e *warming) progress() Progress {
	subject := fmt.Sprintf("leader %s: %s", e.leader, e.request())
	again := fmt.Sprintf("%s: %s (try %d)", subject, e.why, e.tries)
	switch {
	case e.now == warm:
		return Progress{State: Done, Message: subject + " was answered"}
	case e.now == resting:
		return Progress{State: Failed, Recheck: warmRecheck, Message: again + "; next try at " + clock(e.next)}
	case e.why != "":
		return Progress{State: Failed, Recheck: warmRecheck, Message: again + "; it is being tried again"}
	case e.now == queued:
		return Progress{Recheck: warmRecheck, Message: subject + " waits for its turn"}
	default:
		return Progress{Recheck: warmRecheck,
			Message: fmt.Sprintf("%s waits for an answer in the 200s, %s at most", subject, e.policy.Timeout)}
	}
}

func (e *warming) request() request {
	return request{endpoint: e.policy.Endpoint, body: e.policy.Body, timeout: e.policy.Timeout}
}

// warm asks the leader until it answers, nobody wants to know, or ctx ends.
func (p *Prober) warm(ctx context.Context, o *owner, e *warming) {
	defer e.stop()
	for rest := firstPause; o.warmSlots.take(ctx); rest = min(2*rest, longestPause) {
		leader := p.beginWarm(e)
		err := p.ask(ctx, leader, e.request(), func(body io.Reader) error {
			_, err := io.Copy(io.Discard, io.LimitReader(body, warmLimit))
			return err //nolint:wrapcheck // explained by ask
		})
		o.warmSlots.give()
		if !p.endWarm(ctx, o, e, err, rest) || !pause(ctx, rest) || !p.againWarm(o, e) {
			return
		}
	}
}

func (p *Prober) beginWarm(e *warming) Leader {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.now = asking
	return e.leader
}

// endWarm notes how a request ended and says whether there is to be another.
func (p *Prober) endWarm(ctx context.Context, o *owner, e *warming, err error, rest time.Duration) bool {
	p.mu.Lock()
	if ctx.Err() != nil { // dropped while the request was under way
		p.mu.Unlock()
		return false
	}
	e.tries++
	leader, tries, known := e.leader, e.tries, e.why
	if err == nil {
		e.now, e.why = warm, ""
	} else {
		e.now, e.why, e.next = resting, err.Error(), time.Now().Add(rest)
	}
	why := e.why
	p.mu.Unlock()

	level := slog.LevelInfo
	switch {
	case why != "" && why == known:
		level = slog.LevelDebug // said before
	case why != "":
		level = slog.LevelWarn
	}
	p.log.Log(ctx, level, "warm-up", slog.String("owner", o.name), slog.String("leader", leader.String()),
		slog.String("request", e.request().String()), slog.Int("try", tries), slog.Bool("answered", why == ""), slog.String("problem", why))
	p.changed(o.name)
	return why != ""
}

// againWarm says whether a failed request is to be made again. What nobody asked about is dropped.
func (p *Prober) againWarm(o *owner, e *warming) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(e.asked) <= warmPatience {
		e.now = queued
		return true
	}
	if o.warming[e.leader.UID] == e {
		delete(o.warming, e.leader.UID)
		p.tidy(o)
	}
	return false
}
