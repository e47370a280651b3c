// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// perOwner is how many warm-up requests, and how many requests for metrics, are under way at a time for one owner. The
// bounds are apart so that warm-ups which take long hold up neither a drain nor another release.
const perOwner = 16

// Leader is a pod that is asked.
type Leader struct {
	// Name is for people.
	Name string
	// UID is the pod's, so that a pod of the same name that came later is another leader.
	UID string
	// Address is the pod's IP address, of either family. Empty: it has none yet.
	Address string
}

// String names the leader for people.
func (l Leader) String() string {
	if l.Address == "" {
		return l.Name
	}
	return l.Name + " (" + l.Address + ")"
}

// State is how far something has come.
type State int

const (
	// Pending has no answer yet.
	Pending State = iota
	// Failed had a bad answer, or none, and goes on trying by itself.
	Failed
	// Done need not be waited for any longer.
	Done
)

// String returns the state's name.
func (s State) String() string {
	switch s {
	case Done:
		return "Done"
	case Failed:
		return "Failed"
	default:
		return "Pending"
	}
}

// Progress is how something stands.
type Progress struct {
	// State is how far it has come.
	State State
	// Message is for people: which leader, what was asked, what came of it, what comes next.
	Message string
	// Recheck is when to ask again at the latest, although nothing was told by [OnChange]: time alone changes the answer
	// then, or the work ends because nobody asks. Zero: not before something changes.
	Recheck time.Duration
	// Forced means Done at the timeout of a drain, and requests may still be running.
	Forced bool
}

// Prober asks leaders. Its methods may be called from several goroutines.
type Prober struct {
	client  *http.Client
	log     *slog.Logger
	changed func(owner string)

	ctx  context.Context // of all work; ends with Close
	stop context.CancelFunc
	work sync.WaitGroup

	mu     sync.Mutex
	closed bool
	owners map[string]*owner
}

// owner is one release with the leaders that it asks about.
type owner struct {
	name string
	ctx  context.Context // of all work of this owner
	stop context.CancelFunc

	warming    map[string]*warming // by the leader's UID
	warmSlots  slots
	draining   *draining
	drainSlots slots
}

// Option adjusts a Prober.
type Option func(*options)

type options struct {
	log       *slog.Logger
	transport http.RoundTripper
	changed   func(owner string)
}

// WithLogger sets the logger. The default drops everything. Bodies and queries are never logged.
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.log = l } }

// WithTransport sets what carries the requests. The default connects to the leader afresh for each request and uses no
// proxy.
func WithTransport(t http.RoundTripper) Option { return func(o *options) { o.transport = t } }

// OnChange sets what is called after an answer about something of that owner has changed. It must not block, and must
// not call [Prober.Close]. It may come once more for an owner that was just forgotten.
func OnChange(f func(owner string)) Option { return func(o *options) { o.changed = f } }

// New returns a Prober. It makes no request. Close ends it.
func New(opts ...Option) *Prober {
	o := options{log: slog.New(slog.DiscardHandler), transport: newTransport(), changed: func(string) {}}
	for _, opt := range opts {
		opt(&o)
	}
	ctx, stop := context.WithCancel(context.Background())
	return &Prober{
		client: newClient(o.transport), log: o.log, changed: o.changed,
		ctx: ctx, stop: stop, owners: map[string]*owner{},
	}
}

// Close ends all work and returns once it has ended. Whatever is asked later is Pending for good.
func (p *Prober) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.stop()
	p.work.Wait()
	p.client.CloseIdleConnections()
}

// Forget ends all work of the owner and drops what its leaders have answered. It does not wait for requests under way;
// their answers count for nothing. To be called when a release ends, and when its drain is called off.
func (p *Prober) Forget(owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o := p.owners[owner]; o != nil {
		o.stop()
		delete(p.owners, owner)
	}
}

// Keep drops the warm-ups of all leaders of the owner but these, given by UID. A drain is not affected: it has the
// leaders of the last call of [Prober.Drain].
func (p *Prober) Keep(owner string, uids []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.owners[owner]
	if o == nil {
		return
	}
	keep := make(map[string]bool, len(uids))
	for _, uid := range uids {
		keep[uid] = true
	}
	for uid, w := range o.warming {
		if !keep[uid] {
			w.stop()
			delete(o.warming, uid)
		}
	}
	p.tidy(o)
}

// owner returns the owner of that name, a new one if need be. The lock is held.
func (p *Prober) owner(name string) *owner {
	if o := p.owners[name]; o != nil {
		return o
	}
	ctx, stop := context.WithCancel(p.ctx)
	o := &owner{
		name: name, ctx: ctx, stop: stop,
		warming: map[string]*warming{}, warmSlots: make(slots, perOwner), drainSlots: make(slots, perOwner),
	}
	p.owners[name] = o
	return o
}

// tidy drops an owner about which nothing is known. The lock is held.
func (p *Prober) tidy(o *owner) {
	if len(o.warming) == 0 && o.draining == nil && p.owners[o.name] == o {
		o.stop()
		delete(p.owners, o.name)
	}
}

// closing is the answer to everything after Close.
var closing = Progress{Message: "the driver is stopping and asks no leader any more"}

// slots bound how many do something at a time.
type slots chan struct{}

// take waits for a slot and says whether it got one before ctx ended.
func (s slots) take(ctx context.Context) bool {
	if ctx.Err() != nil {
		return false
	}
	select {
	case s <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s slots) give() { <-s }

// pause waits and says whether ctx is still alive.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// clock writes a time for people.
func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }
