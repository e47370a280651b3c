// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	lwsclient "sigs.k8s.io/lws/client-go/clientset/versioned"

	"github.com/lockstep-rollouts/lockstep/internal/access"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/engine"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Driver is the WorkloadDriver and TrafficRouter for LeaderWorkerSet. Run it before it is served.
type Driver struct {
	pb.UnsafeWorkloadDriverServer
	pb.UnsafeTrafficRouterServer

	options Options
	engine  *engine.Engine
	// core and sets are for reads that callers cause: these must not delay the engine's writes.
	core kubernetes.Interface
	sets lwsclient.Interface
	free freeCapacity

	stopped chan struct{} // closed by Drain
	drain   sync.Once
}

var (
	_ pb.WorkloadDriverServer = (*Driver)(nil)
	_ pb.TrafficRouterServer  = (*Driver)(nil)
)

// Options are those of a Driver. The zero value serves all workloads.
type Options struct {
	// Logger gets what the driver does. Nil drops everything.
	Logger *slog.Logger
	// Namespace limits the driver to one namespace. Empty means all of them.
	Namespace string
	// Workload limits the driver to one workload and its namespace: it finishes no release of another and refuses to change another. Zero
	// means all; see KeyOf.
	Workload types.NamespacedName
	// ReadOnly makes the driver observe and answer only: it writes nothing, not even to finish a release, and refuses mutating RPCs with
	// UNSUPPORTED.
	ReadOnly bool
	// Silent leaves the events on workloads to another driver that works on the same ones.
	Silent bool
	// Version is what GetDriverInfo returns.
	Version string
	// LeaseNamespace makes one of several drivers act: the one that holds a Lease in this namespace. A driver campaigns for the Lease once its
	// caches are filled. Until it leads it refuses calls, as if it were not synced. A leader that loses the Lease stops, and Run returns an
	// error. Empty means that there is no election.
	LeaseNamespace string
	// ProbeHostNetwork lets leaders on their node's network (hostNetwork) get warm-up and drain requests. By default they get none: who may
	// create a pod would choose a port of the node that the driver asks.
	ProbeHostNetwork bool
	// MaxGroupsInFlight limits how many groups all releases together create or replace at once. A step that needs more waits until others
	// are ready, with reason WaitingForAdmission; rollbacks never wait. 0 is no limit.
	MaxGroupsInFlight int
	// Limits are what policies may have. Without Metadata no canary_leader_metadata is allowed. ProgressDeadline limits that of policies, so
	// that a release without progress does not keep others waiting for long: a longer one is refused, and a recorded one counts as
	// this long. It is at least record.DefaultProgressDeadline. The default is record.DefaultMaxProgressDeadline.
	Limits record.Limits
	// Decided is called with each decision, the observation it was made from, the intent it carries out (nil: what was requested before), and
	// why that was refused (nil: it was not). It must not block, and may be called concurrently. See package replay.
	Decided func(plan.Observation, plan.Intent, plan.Decision, error)
	// Metrics is where the driver registers its metrics. Nil registers none.
	Metrics prometheus.Registerer

	now      func() time.Time
	election *election // made for LeaseNamespace; nil: none
}

// KeyOf returns the key of a workload, for Options.Workload.
func KeyOf(ref *pb.WorkloadRef) types.NamespacedName {
	return observe.KeyFor(ref.GetKind(), ref.GetNamespace(), ref.GetName())
}

// DefaultQPS lifts client-go's default of 5 requests a second, which would hold up a release. The burst is twice that.
const DefaultQPS = 50

// New returns a Driver for the cluster that config reaches. It makes no request.
func New(config *rest.Config, o Options) (*Driver, error) {
	server := newClock()
	o.now = server.Now
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.Version = cmp.Or(o.Version, "devel")
	o.Limits.ProgressDeadline = cmp.Or(o.Limits.ProgressDeadline, record.DefaultMaxProgressDeadline)
	config = rest.CopyConfig(config)
	config.Wrap(server.wrap)
	if config.QPS == 0 {
		config.QPS, config.Burst = DefaultQPS, 2*DefaultQPS
	}
	config.UserAgent = cmp.Or(config.UserAgent, "lockstep/"+o.Version)
	var err error
	if o.election, err = newElection(config, o); err != nil {
		return nil, err
	}
	config.Wrap(o.election.guardWrites)
	core, sets, err := newClients(config)
	if err != nil {
		return nil, err
	}
	generic, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client of routes: %w", err)
	}
	d := newDriver(core, sets, generic, o)
	// Each user has a rate limit of their own: one who asks for missing workloads delays no other, nor the engine.
	if d.core, d.sets, err = newClients(access.LimitRequests(config)); err != nil {
		return nil, err
	}
	return d, nil
}

// newClients returns clients of Kubernetes' own kinds and of LeaderWorkerSets.
func newClients(config *rest.Config) (kubernetes.Interface, lwsclient.Interface, error) {
	// LeaderWorkerSet is a custom resource and speaks JSON only; the rest is cheaper as protobuf.
	sets, err := lwsclient.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("make LeaderWorkerSet client: %w", err)
	}
	binary := rest.CopyConfig(config)
	binary.ContentType = "application/vnd.kubernetes.protobuf"
	binary.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	core, err := kubernetes.NewForConfig(binary)
	if err != nil {
		return nil, nil, fmt.Errorf("make Kubernetes client: %w", err)
	}
	return core, sets, nil
}

func newDriver(core kubernetes.Interface, sets lwsclient.Interface, generic dynamic.Interface, o Options) *Driver {
	o.Namespace = cmp.Or(o.Workload.Namespace, o.Namespace)
	var elected <-chan struct{}
	if o.election != nil {
		elected = o.election.elected
	}
	e := engine.New(engine.Config{
		Config: observe.Config{
			Core: core, Sets: sets, Dynamic: generic, Log: o.Logger, Namespace: o.Namespace, ReadOnly: o.ReadOnly, ProbeHostNetwork: o.ProbeHostNetwork,
			Limits: o.Limits, Now: o.now,
		},
		Leads: o.election.isLeader, Elected: elected, Workload: o.Workload, Silent: o.Silent, Registry: o.Metrics, Decided: o.Decided,
		MaxGroupsInFlight: o.MaxGroupsInFlight,
	})
	d := &Driver{options: o, core: core, sets: sets, engine: e, stopped: make(chan struct{})}
	if o.Metrics != nil {
		o.Metrics.MustRegister(releaseMetrics{d})
	}
	return d
}

// Drain ends the waits of calls in flight, which return the current state, and the watches, so that a server can stop
// gracefully. The driver keeps reconciling until Run's ctx ends, which drains it too. Drain may be called repeatedly.
func (d *Driver) Drain() { d.drain.Do(func() { close(d.stopped) }) }

// Run fills the caches, finishes releases that an earlier driver left unfinished, and reconciles workloads until ctx ends. It
// returns once everything it started has stopped, and must be called once. With a LeaseNamespace it does so only while the
// driver leads, and returns an error when it no longer does.
func (d *Driver) Run(ctx context.Context) error {
	context.AfterFunc(ctx, d.Drain)
	if d.options.election != nil {
		return d.runElected(ctx)
	}
	d.engine.Run(ctx)
	return nil
}

// Ready returns nil once calls can be served, and why they can't until then: caches are not filled, the driver may not watch what is
// in them, or another driver leads.
func (d *Driver) Ready() error { return d.engine.Ready() }

// Fresh returns nil while the API server confirms what the caches hold, and which it does not and since when. Calls are served all the same:
// an abort must not wait.
func (d *Driver) Fresh() error { return d.engine.Observer.Freshness.Err() }

// Synced reports whether calls can be served.
func (d *Driver) Synced() bool { return d.Ready() == nil }

// maxSkew is how far this machine's clock may be from the API server's before the latter counts. The header Date has whole seconds.
const maxSkew = 2 * time.Second

// API servers whose clocks differ by less than serversSkew do not move the clock back and forth while it agrees with one of them: with one
// that has answered within that time.
const serversSkew = time.Minute

// clock is the API server's time, which dates the objects that deadlines and delays count from. This process's monotonic clock carries it
// on, so that no jump of a wall clock matters, and the header Date of each answer corrects it.
type clock struct {
	mu sync.Mutex
	// at is the time at the moment that began, which has a monotonic reading.
	at, began time.Time
	// agreed is when an answer agreed with the clock last.
	agreed time.Time
}

func newClock() *clock {
	now := time.Now()
	return &clock{at: now, began: now}
}

// Now returns the time.
func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at.Add(time.Since(c.began))
}

// wrap returns a transport that corrects the clock by the answers of the API server.
func (c *clock) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		sent := c.Now()
		answer, err := next.RoundTrip(r)
		if err == nil {
			if date, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
				c.correct(date, sent)
			}
		}
		return answer, err //nolint:wrapcheck // the transport's own
	})
}

// correct sets the clock to the date of an answer, unless it agrees with it: the answer was dated after the request was sent.
func (c *clock) correct(date, sent time.Time) {
	now := c.Now()
	// off is positive if the date is before the request or after its answer.
	off := max(sent.Sub(date), date.Sub(now))
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case off <= maxSkew:
		c.agreed = time.Now()
	case off >= serversSkew || time.Since(c.agreed) >= serversSkew:
		c.at, c.began = date, time.Now()
		c.agreed = c.began
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
