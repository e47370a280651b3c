// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	lwsclient "sigs.k8s.io/lws/client-go/clientset/versioned"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic/probe"
	"github.com/lockstep-rollouts/lockstep/traffic/router"
)

type workload = lws.LeaderWorkerSet

// Driver is the WorkloadDriver and TrafficRouter for LeaderWorkerSet. Run it before it is served.
type Driver struct {
	pb.UnsafeWorkloadDriverServer
	pb.UnsafeTrafficRouterServer

	options  options
	log      *slog.Logger
	core     kubernetes.Interface
	caches   *caches
	observer *observer
	applier  *applier
	router   *router.Router
	scalers  *autoscalers
	prober   *probe.Prober
	budgets  *budgets
	events   *announcer
	metrics  *metrics
	queue    workqueue.TypedRateLimitingInterface[types.NamespacedName]
	hub      hub
	locks    scope
	trouble  troubles
	startup  startup

	snapshots *snapshots

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
	registry  prometheus.Registerer
	decided   func(plan.Observation, plan.Intent, plan.Decision, error)
	now       func() time.Time
}

// Option adjusts a Driver.
type Option func(*options)

// WithLogger sets the logger. The default drops everything.
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.log = l } }

// WithNamespace limits the driver to one namespace. The default is all of them.
func WithNamespace(ns string) Option { return func(o *options) { o.namespace = ns } }

// WithWorkload limits the driver to one workload: it finishes no release of another and refuses to change another. It
// implies WithNamespace. The default is all workloads.
func WithWorkload(key types.NamespacedName) Option {
	return func(o *options) { o.workload, o.namespace = key, key.Namespace }
}

// WithReadOnly makes the driver look and answer only: it writes nothing by itself, not even to finish a release, and
// refuses the RPCs that would change something with UNSUPPORTED.
func WithReadOnly() Option { return func(o *options) { o.readOnly = true } }

// WithoutEvents leaves the events on workloads to another driver that works on the same ones. The default writes them.
func WithoutEvents() Option { return func(o *options) { o.silent = true } }

// WithVersion sets the version that GetDriverInfo returns.
func WithVersion(v string) Option { return func(o *options) { o.version = v } }

// WithDecisions calls f with each decision, the observation it was made from, the intent it carries out (nil: what was
// requested before), and why that was refused (nil: it was not). f must not block, and may be called concurrently. See
// package replay.
func WithDecisions(f func(plan.Observation, plan.Intent, plan.Decision, error)) Option {
	return func(o *options) { o.decided = f }
}

// WithMetrics registers the driver's metrics. The default registers none.
func WithMetrics(r prometheus.Registerer) Option { return func(o *options) { o.registry = r } }

const (
	// workers is how many workloads are worked on at once. They mostly wait for the API server.
	workers = 8
	// minQPS lifts client-go's default of 5 requests a second, which would hold up a release.
	minQPS = 50
)

// New returns a Driver for the cluster that config reaches. It makes no request.
func New(config *rest.Config, opts ...Option) (*Driver, error) {
	o := options{log: slog.New(slog.DiscardHandler), version: "devel", now: time.Now}
	for _, opt := range opts {
		opt(&o)
	}
	config = rest.CopyConfig(config)
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
	return newDriver(core, sets, generic, o)
}

func newDriver(core kubernetes.Interface, sets lwsclient.Interface, generic dynamic.Interface, o options) (*Driver, error) {
	d := &Driver{
		options: o, log: o.log, core: core, metrics: newMetrics(o.registry), stopped: make(chan struct{}),
		locks: scope{readOnly: o.readOnly, workload: o.workload},
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](50*time.Millisecond, 30*time.Second)),
	}
	caches, err := newCaches(core, sets, o.namespace, d.changed, d.gone)
	if err != nil {
		return nil, err
	}
	d.caches = caches
	d.locks.goesBy = caches.goesBy
	d.router, err = router.New(core, generic, router.WithLogger(o.log), router.WithNamespace(o.namespace), router.OnChange(d.carrierChanged))
	if err != nil {
		return nil, fmt.Errorf("make router: %w", err)
	}
	d.scalers, err = newAutoscalers(core, generic, o.namespace, d.changed, d.lookAgain)
	if err != nil {
		return nil, err
	}
	d.prober = probe.New(probe.WithLogger(o.log), probe.OnChange(d.probed))
	d.budgets, err = newBudgets(core, o.namespace, d.changed)
	if err != nil {
		return nil, err
	}
	d.snapshots, err = newSnapshots(core, o.namespace, d.changed)
	if err != nil {
		return nil, err
	}
	d.observer = &observer{
		caches: caches, router: d.router, scalers: d.scalers, budgets: d.budgets, prober: d.prober, now: o.now, asksNobody: o.readOnly,
		snapshots: d.snapshots,
	}
	d.applier = &applier{
		client: sets, core: core, router: d.router, scalers: d.scalers, budgets: d.budgets, caches: caches, hub: &d.hub,
		snapshots: d.snapshots,
	}
	d.events = newAnnouncer(core, o.log)
	if o.silent {
		d.events.recorder = &events.FakeRecorder{}
	}
	return d, nil
}

// changed is called for every event in the cluster that is about a workload.
func (d *Driver) changed(key types.NamespacedName) {
	if d.locks.covers(key) {
		d.queue.Add(key)
	}
	d.hub.notify(key)
}

// lookAgain is called when it becomes known, or unknown, what a cache holds that any workload may need: which autoscalers,
// budgets and snapshots there are.
func (d *Driver) lookAgain() {
	for _, obj := range d.caches.workloads.GetIndexer().List() {
		switch w, ok := obj.(*lws.LeaderWorkerSet); {
		case !ok:
		case w.Annotations[record.RecordAnnotation] != "":
			d.changed(stableKey(w))
		default:
			d.hub.notify(stableKey(w)) // a call may wait for it; there is no work
		}
	}
}

// probed is called when a leader has answered, or has not.
func (d *Driver) probed(owner string) {
	namespace, name, _ := strings.Cut(owner, "/")
	d.changed(types.NamespacedName{Namespace: namespace, Name: name})
}

// gone is called for every LeaderWorkerSet that was deleted, and again after the last work on it: nothing is remembered
// of what does not exist.
func (d *Driver) gone(key types.NamespacedName) {
	d.caches.groups.forget(key)
	d.observer.forget(key)
	if d.locks.readOnly || !d.locks.covers(key) {
		d.observer.forgetPolicy(key) // nobody here gives anything back
	}
	d.events.forget(key)
	d.trouble.set(key, nil)
	d.snapshots.resume(key)
}

// Drain ends the waits of calls in flight, which answer with what there is, and the watches, so that a server can stop
// without cutting anything off. The driver works on until Run's ctx ends, which drains it too. It may be called often.
func (d *Driver) Drain() { d.drain.Do(func() { close(d.stopped) }) }

// Run fills the caches and finishes releases that an earlier driver left unfinished, then works until ctx ends. It
// returns once everything it started has stopped, and must be called once.
func (d *Driver) Run(ctx context.Context) error {
	context.AfterFunc(ctx, d.Drain)
	var running sync.WaitGroup
	defer running.Wait()
	defer d.prober.Close()
	for _, informer := range []cache.SharedIndexInformer{d.caches.workloads, d.caches.pods, d.caches.revisions} {
		running.Go(func() { informer.RunWithContext(ctx) })
	}
	running.Go(func() { d.events.run(ctx) })
	running.Go(func() { d.router.Run(ctx) })
	d.scalers.begin()
	running.Go(func() { d.scalers.run(ctx) })
	running.Go(func() { d.budgets.run(ctx, d.lookAgain) })
	running.Go(func() { d.snapshots.run(ctx, d.lookAgain) })
	running.Go(func() { d.diagnose(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), d.caches.workloads.HasSynced, d.caches.pods.HasSynced, d.caches.revisions.HasSynced) {
		return nil
	}
	d.log.Info("caches are filled")
	work := d.work
	if d.options.readOnly {
		work = d.watch
	}
	for range workers {
		running.Go(func() { work(ctx) })
	}
	<-ctx.Done()
	d.queue.ShutDown()
	return nil
}

// Synced says whether calls can be answered: the caches are filled, and the driver may keep them so.
func (d *Driver) Synced() bool { return d.notServing() == nil }

func holds(w *workload) bool { return slices.Contains(w.Finalizers, record.Finalizer) }

// reference is how events name a workload; the cache holds objects without their kind.
func reference(w *workload) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: lws.GroupVersion.String(), Kind: "LeaderWorkerSet",
		Namespace: w.Namespace, Name: w.Name, UID: w.UID, ResourceVersion: w.ResourceVersion,
	}
}

// troubles keep, per workload, the error that keeps its release from going on.
type troubles struct {
	mu  sync.Mutex
	all map[types.NamespacedName]trouble
}

type trouble struct {
	err error
	// write: it was a write that was refused for good.
	write     bool
	conflicts int // how many there were in a row, this one included
}

// stubborn is from how many conflicts in a row on they are no accident: something answers each write with one.
const stubborn = 5

func (t *troubles) set(key types.NamespacedName, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		delete(t.all, key)
		return
	}
	if t.all == nil {
		t.all = map[types.NamespacedName]trouble{}
	}
	now := trouble{err: err}
	if isConflict(err) {
		now.conflicts = t.all[key].conflicts + 1
	}
	t.all[key] = now
}

// refuse is set for a write that was refused for good.
func (t *troubles) refuse(key types.NamespacedName, err error) {
	t.set(key, err)
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.all[key]
	now.write = true
	t.all[key] = now
}

// refused is why the last write was refused for good, nil if it was not.
func (t *troubles) refused(key types.NamespacedName) *drivererr.Problem {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.all[key]; now.write {
		return drivererr.ProblemOf(now.err)
	}
	return nil
}

// get returns what people should know. A lost race is none of it: the next look is on its way.
func (t *troubles) get(key types.NamespacedName) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.all[key]
	if now.conflicts > 0 && now.conflicts < stubborn {
		return nil
	}
	return now.err
}
