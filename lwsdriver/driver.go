// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	lwsclient "sigs.k8s.io/lws/client-go/clientset/versioned"

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

	options options
	engine  *engine.Engine
	// core and sets are for reads that callers cause: these must not delay the engine's writes.
	core  kubernetes.Interface
	sets  lwsclient.Interface
	rooms rooms
	// states are what the watches of all workloads send.
	states sharedStates

	stopped chan struct{} // closed by Drain
	drain   sync.Once
}

var (
	_ pb.WorkloadDriverServer = (*Driver)(nil)
	_ pb.TrafficRouterServer  = (*Driver)(nil)
)

type options struct {
	log       *slog.Logger
	namespace string
	workload  types.NamespacedName
	readOnly  bool
	version   string
	silent    bool
	limits    record.Limits
	// probeHostNetwork: see WithHostNetworkProbes.
	probeHostNetwork bool
	// groupsInFlight: see WithMaxGroupsInFlight.
	groupsInFlight int
	registry       prometheus.Registerer
	decided        func(plan.Observation, plan.Intent, plan.Decision, error)
	now            func() time.Time

	// leaseNamespace is the namespace of the Lease that elects a leader. Empty means that there is no election.
	leaseNamespace string
	election       *election // made from it; nil: none
}

// Option adjusts a Driver.
type Option func(*options)

// WithLogger sets the logger. The default drops everything.
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.log = l } }

// WithNamespace limits the driver to one namespace. The default is all of them.
func WithNamespace(ns string) Option { return func(o *options) { o.namespace = ns } }

// KeyOf returns the key of a workload, for WithWorkload.
func KeyOf(ref *pb.WorkloadRef) types.NamespacedName {
	return observe.KeyFor(ref.GetKind(), ref.GetNamespace(), ref.GetName())
}

// WithWorkload limits the driver to one workload: it finishes no release of another and refuses to change another. It
// implies WithNamespace. The default is all workloads.
func WithWorkload(key types.NamespacedName) Option {
	return func(o *options) { o.workload, o.namespace = key, key.Namespace }
}

// WithReadOnly makes the driver observe and answer only: it writes nothing, not even to finish a release, and refuses mutating
// RPCs with UNSUPPORTED.
func WithReadOnly() Option { return func(o *options) { o.readOnly = true } }

// WithoutEvents leaves the events on workloads to another driver that works on the same ones. The default writes them.
func WithoutEvents() Option { return func(o *options) { o.silent = true } }

// WithHostNetworkProbes lets leaders on their node's network (hostNetwork) get warm-up and drain requests. By default they get
// none: who may create a pod would choose a port of the node that the driver asks.
func WithHostNetworkProbes() Option { return func(o *options) { o.probeHostNetwork = true } }

// WithVersion sets the version that GetDriverInfo returns.
func WithVersion(v string) Option { return func(o *options) { o.version = v } }

// WithCanaryMetadata allows canary_leader_metadata whose keys have one of these prefixes. The default allows none.
func WithCanaryMetadata(prefixes ...string) Option {
	return func(o *options) { o.limits.Metadata = prefixes }
}

// WithMaxProgressDeadline limits the progress_deadline of policies, so that a release without progress does not keep others from their turn
// for long. A longer one is refused, and a recorded one counts as this long. It is at least record.DefaultProgressDeadline. The default is
// record.DefaultMaxProgressDeadline.
func WithMaxProgressDeadline(longest time.Duration) Option {
	return func(o *options) { o.limits.ProgressDeadline = longest }
}

// WithMaxGroupsInFlight limits how many groups all releases together create or replace at once. A step that needs more waits until
// others are ready, with reason WaitingForTurn; rollbacks never wait. The default, 0, is no limit.
func WithMaxGroupsInFlight(n int) Option { return func(o *options) { o.groupsInFlight = n } }

// WithDecisions calls f with each decision, the observation it was made from, the intent it carries out (nil: what was
// requested before), and why that was refused (nil: it was not). f must not block, and may be called concurrently. See
// package replay.
func WithDecisions(f func(plan.Observation, plan.Intent, plan.Decision, error)) Option {
	return func(o *options) { o.decided = f }
}

// WithMetrics registers the driver's metrics. The default registers none.
func WithMetrics(r prometheus.Registerer) Option { return func(o *options) { o.registry = r } }

// minQPS lifts client-go's default of 5 requests a second, which would hold up a release.
const minQPS = 50

// New returns a Driver for the cluster that config reaches. It makes no request.
func New(config *rest.Config, opts ...Option) (*Driver, error) {
	server := newClock()
	o := options{log: slog.New(slog.DiscardHandler), version: "devel", now: server.Now}
	o.limits.ProgressDeadline = record.DefaultMaxProgressDeadline
	for _, opt := range opts {
		opt(&o)
	}
	config = rest.CopyConfig(config)
	config.Wrap(server.wrap)
	if config.QPS == 0 {
		config.QPS, config.Burst = minQPS, 2*minQPS
	}
	if config.UserAgent == "" {
		config.UserAgent = "lockstep/" + o.version
	}
	// LeaderWorkerSet is a custom resource and speaks JSON only; the rest is cheaper as protobuf.
	sets, err := lwsclient.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make LeaderWorkerSet client: %w", err)
	}
	binary := rest.CopyConfig(config)
	binary.ContentType = "application/vnd.kubernetes.protobuf"
	binary.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	core, err := kubernetes.NewForConfig(binary)
	if err != nil {
		return nil, fmt.Errorf("make Kubernetes client: %w", err)
	}
	generic, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client of routes: %w", err)
	}
	if o.election, err = newElection(config, o); err != nil {
		return nil, err
	}
	d, err := newDriver(core, sets, generic, o)
	if err != nil {
		return nil, err
	}
	// Each client has a rate limit of its own.
	if d.sets, err = lwsclient.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("make LeaderWorkerSet client for callers: %w", err)
	}
	if d.core, err = kubernetes.NewForConfig(binary); err != nil {
		return nil, fmt.Errorf("make Kubernetes client for callers: %w", err)
	}
	return d, nil
}

func newDriver(core kubernetes.Interface, sets lwsclient.Interface, generic dynamic.Interface, o options) (*Driver, error) {
	var elected <-chan struct{}
	if o.election != nil {
		elected = o.election.elected
	}
	e, err := engine.New(engine.Config{
		Leads: o.election.isLeader, Elected: elected,
		Core: core, Sets: sets, Dynamic: generic, Log: o.log, Namespace: o.namespace, Workload: o.workload,
		ReadOnly: o.readOnly, Silent: o.silent, Registry: o.registry, Decided: o.decided, Now: o.now, Limits: o.limits,
		ProbeHostNetwork: o.probeHostNetwork, MaxGroupsInFlight: o.groupsInFlight,
	})
	if err != nil {
		return nil, err
	}
	d := &Driver{options: o, core: core, sets: sets, engine: e, stopped: make(chan struct{})}
	e.Observer.Changes.Before = d.states.changed
	if o.registry != nil {
		o.registry.MustRegister(releaseMetrics{d})
	}
	return d, nil
}

// Drain ends the waits of calls in flight, which return the current state, and the watches, so that a server can stop
// gracefully. The driver keeps reconciling until Run's ctx ends, which drains it too. Drain may be called repeatedly.
func (d *Driver) Drain() { d.drain.Do(func() { close(d.stopped) }) }

// Run fills the caches, finishes releases that an earlier driver left unfinished, and reconciles workloads until ctx ends. It
// returns once everything it started has stopped, and must be called once. With WithLeaderElection it does so only while the
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
