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

	"github.com/lockstep-rollouts/lockstep/plugin/informer/guard"
)

const (
	// minBackoff and maxBackoff are the time before a failed warm-up is retried, which doubles.
	minBackoff = time.Second
	maxBackoff = 30 * time.Second
	// warmIdleTimeout stops a warm-up that the caller no longer polls, warmRecheck is how often to poll therefore.
	warmIdleTimeout = 2 * time.Minute
	warmRecheck     = 30 * time.Second
	// warmLimit bounds how much of a response is read; the rest is ignored.
	warmLimit = 64 << 10
)

// warming is the warm-up of a leader. The Prober's lock guards it.
type warming struct {
	leader Leader
	policy WarmUp
	stop   context.CancelFunc
	polled time.Time // by the caller
	now    step
	tries  int       // completed
	why    string    // why the last try failed, if it did
	next   time.Time // of the next try, in step backoff
}

// step is the present step of a warm-up.
type step int

const (
	queued step = iota
	requesting
	backoff
	warm
)

// Warm returns whether a leader is warm. The first call for a leader starts the request in the background; a failed request
// is retried with backoff, as long as the caller polls. Success is remembered until [Prober.Forget] or [Prober.Keep] drops
// it. Another policy starts another warm-up.
func (p *Prober) Warm(owner string, l Leader, w WarmUp) Progress {
	if w == (WarmUp{}) {
		return Progress{State: Done, Message: "no warm-up is configured"}
	}
	w.Timeout = cmp.Or(w.Timeout, DefaultWarmUpTimeout)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return closing
	}
	o := p.owner(owner)
	e := o.warming[l.UID]
	// A result under the former policy says nothing about the new request.
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
		p.work.Go(func() { _ = guard.Call(p.log, "warm-up", l.String(), func() { p.warm(ctx, o, e) }) })
	}
	e.leader, e.polled = l, time.Now()
	return e.progress()
}

// progress returns the present Progress. The lock is held.
func (e *warming) progress() Progress {
	subject := fmt.Sprintf("leader %s: %s", e.leader, e.request())
	failed := fmt.Sprintf("%s: %s (try %d)", subject, e.why, e.tries)
	switch {
	case e.now == warm:
		return Progress{State: Done, Message: subject + " succeeded"}
	case e.now == backoff:
		return Progress{State: Failed, Recheck: warmRecheck, Message: failed + "; next try at " + clock(e.next)}
	case e.why != "":
		return Progress{State: Failed, Recheck: warmRecheck, Message: failed + "; it is being retried"}
	case e.now == queued:
		return Progress{Recheck: warmRecheck, Message: subject + " is queued"}
	default:
		return Progress{Recheck: warmRecheck,
			Message: fmt.Sprintf("%s waits for a 2xx response, %s at most", subject, e.policy.Timeout)}
	}
}

func (e *warming) request() request {
	return request{endpoint: e.policy.Endpoint, body: e.policy.Body, timeout: e.policy.Timeout}
}

// warm makes requests until one succeeds, the warm-up is no longer polled, or ctx ends.
func (p *Prober) warm(ctx context.Context, o *owner, e *warming) {
	defer e.stop()
	for wait := minBackoff; o.acquireBoth(ctx, o.warmSlots, p.warmSlots); wait = min(2*wait, maxBackoff) {
		leader := p.beginWarm(e)
		err := p.do(ctx, leader, e.request(), func(body io.Reader) error {
			// A server may send its status before the model has computed anything, so the body is read as well.
			_, err := io.Copy(io.Discard, io.LimitReader(body, warmLimit))
			return err //nolint:wrapcheck // explained by do
		})
		// Slots are free during the backoff, so that failing leaders don't delay others.
		o.releaseBoth(o.warmSlots, p.warmSlots)
		if !p.endWarm(ctx, o, e, err, wait) || !pause(ctx, wait) || !p.retryWarm(o, e) {
			return
		}
	}
}

func (p *Prober) beginWarm(e *warming) Leader {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.now = requesting
	return e.leader
}

// endWarm stores the result of a request and reports whether to retry.
func (p *Prober) endWarm(ctx context.Context, o *owner, e *warming, err error, wait time.Duration) bool {
	p.mu.Lock()
	if ctx.Err() != nil { // dropped while the request was in flight
		p.mu.Unlock()
		return false
	}
	e.tries++
	leader, tries, known := e.leader, e.tries, e.why
	if err == nil {
		e.now, e.why = warm, ""
	} else {
		e.now, e.why, e.next = backoff, err.Error(), time.Now().Add(wait)
	}
	why := e.why
	p.mu.Unlock()

	level := slog.LevelInfo
	switch {
	case why != "" && why == known:
		level = slog.LevelDebug // logged before
	case why != "":
		level = slog.LevelWarn
	}
	p.log.Log(ctx, level, "warm-up", slog.String("owner", o.name), slog.String("leader", leader.String()),
		slog.String("request", e.request().String()), slog.Int("try", tries), slog.Bool("answered", why == ""), slog.String("problem", why))
	p.changed(o.name)
	return why != ""
}

// retryWarm reports whether to retry a failed request. A warm-up that is no longer polled is dropped.
func (p *Prober) retryWarm(o *owner, e *warming) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(e.polled) <= warmIdleTimeout {
		e.now = queued
		return true
	}
	// A later call may have replaced this warm-up.
	if o.warming[e.leader.UID] == e {
		delete(o.warming, e.leader.UID)
		p.tidy(o)
	}
	return false
}
