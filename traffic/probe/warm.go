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
	// warmLimit bounds how much of a response is read; the rest is ignored.
	warmLimit = 64 << 10
)

// warming is the warm-up of a leader. The Prober's lock guards it.
type warming struct {
	leader Leader
	policy WarmUp
	stop   context.CancelFunc
	tries  int       // completed
	warm   bool      // a try has succeeded
	why    string    // why the last try failed, if it did
	next   time.Time // of the next try, after one that failed
}

// Warm returns whether a leader is warm. The first call for a leader starts the request in the background; a failed request
// is retried with backoff. Success is remembered. [Prober.Forget] or [Prober.Keep] ends a warm-up and drops its result. Another
// policy starts another warm-up.
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
	e.leader = l
	return e.progress()
}

// progress returns the present Progress. The lock is held.
func (e *warming) progress() Progress {
	subject := fmt.Sprintf("leader %s: %s", e.leader, e.request())
	switch {
	case e.warm:
		return Progress{State: Done, Message: subject + " succeeded"}
	case e.why != "":
		return Progress{State: Failed, Message: fmt.Sprintf("%s: %s (try %d); next try at %s", subject, e.why, e.tries, formatTime(e.next))}
	default:
		return Progress{Message: fmt.Sprintf("%s waits for its turn and a 2xx response, %s at most", subject, e.policy.Timeout)}
	}
}

func (e *warming) request() request {
	return request{endpoint: e.policy.Endpoint, body: e.policy.Body, timeout: e.policy.Timeout}
}

// warm makes requests until one succeeds or ctx ends.
func (p *Prober) warm(ctx context.Context, o *owner, e *warming) {
	defer e.stop()
	wait := minBackoff
	p.repeat(ctx, o, o.warmSlots, p.warmSlots, func() time.Duration {
		p.mu.Lock()
		leader := e.leader
		p.mu.Unlock()
		err := p.do(ctx, leader, e.request(), func(body io.Reader) error {
			// A server may send its status before the model has computed anything, so the body is read as well.
			_, err := io.Copy(io.Discard, io.LimitReader(body, warmLimit))
			return err //nolint:wrapcheck // explained by do
		})
		pause := wait
		wait = min(2*wait, maxBackoff)
		if !p.endWarm(ctx, o, e, err, pause) {
			return 0
		}
		return pause
	})
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
	if e.warm, e.why = err == nil, ""; err != nil {
		e.why, e.next = err.Error(), time.Now().Add(wait)
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
