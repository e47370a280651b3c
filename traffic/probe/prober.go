// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/lockstep-rollouts/lockstep/traffic/fair"
)

// perOwner bounds the concurrent warm-up requests, and the concurrent metric requests, of one owner. The bounds are separate
// so that long warm-ups delay neither a drain nor another release.
const perOwner = 16

// perProcess bounds both kinds of requests once more, over all owners: each takes a connection and its buffers. A namespace without a warm-up
// request gets one in any case: those of others may take an hour.
const perProcess = 128

// Leader is a leader pod.
type Leader struct {
	// Name is the pod's name, for messages.
	Name string
	// UID is the pod's UID: a recreated pod with the same name is another leader.
	UID string
	// Address is the pod's IP address, of either family. Empty means that it has none yet.
	Address string
	// HostNetwork means that the address is its node's, on which other programs listen, too.
	HostNetwork bool
	// Ready means that Kubernetes reports the pod ready, so a connection that it refuses does not mean that its server has ended.
	Ready bool
}

// String returns name and address, for messages.
func (l Leader) String() string {
	if l.Address == "" {
		return l.Name
	}
	return l.Name + " (" + l.Address + ")"
}

// State is the state of a warm-up or a drain.
type State int

const (
	// Pending means that no request has completed yet.
	Pending State = iota
	// Failed means that a request has failed, and is retried.
	Failed
	// Done means that the caller need not wait any longer.
	Done
)

// Progress is the progress of a warm-up or a drain.
type Progress struct {
	// State is its state.
	State State
	// Message names the leader, the request, its result and what happens next.
	Message string
	// Recheck is when to poll again at the latest, even without a call of [Config.Changed]: the progress of a drain depends on time.
	// Zero means poll after a change only.
	Recheck time.Duration
	// Forced means Done at the timeout of a drain; requests may still be in flight.
	Forced bool
}

// Prober makes requests to leaders. Its methods are safe for concurrent use.
type Prober struct {
	client  *http.Client
	log     *slog.Logger
	changed func(owner string)
	// hostNetwork allows leaders on their node's network; loopback, for tests, addresses of this machine.
	hostNetwork, loopback bool

	ctx  context.Context // of all work; ends with Close
	stop context.CancelFunc
	work sync.WaitGroup

	warmSlots, drainSlots *fair.Slots // of all owners, by namespace

	mu     sync.Mutex
	closed bool
	owners map[string]*owner
}

// owner is one release with its leaders. Its name is that of the workload, "namespace/name".
type owner struct {
	name, namespace string
	ctx             context.Context // of all work of this owner
	stop            context.CancelFunc

	warming    map[string]*warming // by the leader's UID
	warmSlots  *semaphore.Weighted
	draining   *draining
	drainSlots *semaphore.Weighted
}

// Config configures a Prober.
type Config struct {
	// Log is required. Bodies and queries are never logged.
	Log *slog.Logger
	// Changed is called after the progress of an owner's leader has changed. Required. It must not block, and must not call
	// [Prober.Close]. It may be called once more for an owner that was just forgotten.
	Changed func(owner string)
	// HostNetwork has leaders on their node's network get requests, too.
	HostNetwork bool
	// Transport is by default one that opens a new connection for each request and uses no proxy.
	Transport http.RoundTripper
}

// New returns a Prober. It makes no request. Close stops it.
func New(c Config) *Prober {
	if c.Transport == nil {
		c.Transport = newTransport()
	}
	ctx, stop := context.WithCancel(context.Background())
	p := &Prober{
		client: newClient(c.Transport), log: c.Log, changed: c.Changed, hostNetwork: c.HostNetwork,
		ctx: ctx, stop: stop, owners: map[string]*owner{}, warmSlots: fair.NewSlots(perProcess), drainSlots: fair.NewSlots(perProcess),
	}
	p.warmSlots.OneForEach = true
	return p
}

// Close stops all work and returns once it has ended. All later progress is Pending.
func (p *Prober) Close() {
	p.mu.Lock()
	// No call adds work once closed is set: a WaitGroup must not grow while Wait returns.
	p.closed = true
	p.mu.Unlock()
	p.stop()
	p.work.Wait()
	p.client.CloseIdleConnections()
}

// Forget stops all work of the owner and drops its results. It does not wait for requests in flight; their responses are
// ignored. Call it when a release ends, and when its drain is cancelled.
func (p *Prober) Forget(owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o := p.owners[owner]; o != nil {
		o.stop()
		delete(p.owners, owner)
	}
}

// Keep ends the warm-ups of the owner except those of the given leaders' UIDs, and its drain unless it drains.
func (p *Prober) Keep(owner string, warming []string, drains bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.owners[owner]
	if o == nil {
		return
	}
	for uid, w := range o.warming {
		if !slices.Contains(warming, uid) {
			w.stop()
			delete(o.warming, uid)
		}
	}
	if !drains {
		o.draining.stop()
		o.draining = nil
	}
	p.tidy(o)
}

// owner returns the owner with a name, a new one if it is unknown. The lock is held.
func (p *Prober) owner(name string) *owner {
	if o := p.owners[name]; o != nil {
		return o
	}
	ctx, stop := context.WithCancel(p.ctx)
	namespace, _, _ := strings.Cut(name, "/")
	o := &owner{
		name: name, namespace: namespace, ctx: ctx, stop: stop,
		warming: map[string]*warming{}, warmSlots: semaphore.NewWeighted(perOwner), drainSlots: semaphore.NewWeighted(perOwner),
	}
	p.owners[name] = o
	return o
}

// tidy drops an owner without work or results. The lock is held.
func (p *Prober) tidy(o *owner) {
	// The owner may have been forgotten and created anew.
	if len(o.warming) == 0 && o.draining == nil && p.owners[o.name] == o {
		o.stop()
		delete(p.owners, o.name)
	}
}

// closing is the progress of everything after Close.
var closing = Progress{Message: "the driver is stopping and makes no more requests to leaders"}

// repeat calls once, which makes a request and returns when to make the next one, or 0 to end. It waits for a slot of the owner, and then
// for one of all owners: an owner with many leaders must not queue for all of them, and a namespace with many owners not before others.
func (p *Prober) repeat(ctx context.Context, o *owner, own *semaphore.Weighted, all *fair.Slots, once func() time.Duration) {
	for own.Acquire(ctx, 1) == nil {
		next := time.Duration(0)
		if all.Acquire(ctx, o.namespace) {
			next = once()
			all.Release(o.namespace)
		}
		// Slots are free between two requests, so that failing leaders don't delay others.
		own.Release(1)
		if next == 0 || !pauseFor(ctx, next) {
			return
		}
	}
}

// pauseFor waits and reports whether ctx has not ended.
func pauseFor(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		// If both are ready, select takes either.
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// formatTime formats a time for messages.
func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }
