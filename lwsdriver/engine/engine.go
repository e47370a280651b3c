// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/apply"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// workers is how many workloads are reconciled concurrently. They mostly wait for the API server.
const workers = 8

// syncPeriod is the interval at which the caches are looked at until they are filled.
const syncPeriod = 100 * time.Millisecond

// Engine runs the loop of every workload: observe, plan, apply, until there is nothing to write.
type Engine struct {
	// Observer reads what the engine decides from, and Applier makes its writes.
	Observer *observe.Observer
	Applier  *apply.Applier

	config    Config
	queue     workqueue.TypedRateLimitingInterface[types.NamespacedName]
	locks     scope
	memories  memories
	admission admission
	events    *eventRecorder
	metrics   *metrics
}

// Config is what an Engine needs.
type Config struct {
	// Config is the Observer's, without Changed and Deleted, which the engine sets.
	observe.Config

	// Workload limits the engine to one workload. Zero means all.
	Workload types.NamespacedName
	// Silent keeps the engine from recording events.
	Silent bool
	// Registry gets the metrics. Nil means that they are not registered.
	Registry prometheus.Registerer
	// MaxGroupsInFlight limits the groups of all releases that are created or replaced and not ready yet. 0 means no limit.
	MaxGroupsInFlight int
	// Decided is called with each decision, see lwsdriver.Options. Optional.
	Decided func(plan.Observation, plan.Intent, plan.Decision, error)
	// Leads reports whether the engine may act. Until Elected is closed, and whenever Leads returns false, it only fills its
	// caches. Nil means that it always may.
	Leads   func() bool
	Elected <-chan struct{}
}

// New returns an Engine. It makes no request.
func New(c Config) *Engine {
	e := &Engine{
		config: c, locks: scope{readOnly: c.ReadOnly, workload: c.Workload},
		queue: newQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](50*time.Millisecond, 30*time.Second)),
	}
	e.admission.limit, e.admission.wake = c.MaxGroupsInFlight, e.queue.Add
	e.metrics = newMetrics(c.Registry, &e.admission)
	c.Changed, c.Deleted = e.changed, e.forget
	e.Observer = observe.New(c.Config)
	// A caller that is notified of a change must not get what was observed before it.
	e.Observer.Changes.Before = e.dropLook
	if c.Registry != nil {
		c.Registry.MustRegister(e.Observer.Freshness.Metrics())
	}
	e.locks.isAlias = e.Observer.Caches.IsAlias
	e.Applier = apply.New(c.Core, c.Sets, c.Dynamic, e.Observer, c.Limits.Metadata...)
	e.events = newEventRecorder(c.Core, c.Log)
	if c.Silent {
		e.events.recorder = &events.FakeRecorder{}
	}
	return e
}

// Run fills the caches, finishes the releases that an earlier driver left unfinished, and reconciles workloads until ctx ends.
// It returns once everything it started has stopped, and must be called once.
func (e *Engine) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	// ShutDown runs before running.Wait, and ends the workers that wait for a workload.
	defer e.queue.ShutDown()
	running.Go(func() { e.Observer.Run(ctx) })
	running.Go(func() { e.events.run(ctx) })
	if !e.awaitCaches(ctx) {
		return
	}
	// A standby has filled its caches by now, so that it can act at once.
	if e.config.Elected != nil {
		select {
		case <-e.config.Elected:
		case <-ctx.Done():
			return
		}
	}
	// Uncounted, the groups that still start would not limit the first release.
	e.countEarlier()
	for range workers {
		running.Go(func() { e.work(ctx) })
	}
	<-ctx.Done()
}

// awaitCaches returns true once the caches are filled. It logs what prevents that.
func (e *Engine) awaitCaches(ctx context.Context) bool {
	known := ""
	ended := wait.PollUntilContextCancel(ctx, syncPeriod, true, func(context.Context) (bool, error) {
		err := e.Filled()
		if err != nil && drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_NOT_SYNCED && err.Error() != known {
			known = err.Error()
			e.config.Log.Warn("not ready", slog.Any("error", err))
		}
		return err == nil, nil
	})
	if ended == nil {
		e.config.Log.Info("caches are filled")
	}
	return ended == nil
}

// Filled returns nil once the caches are filled and watched, and the obstacle until then.
func (e *Engine) Filled() error {
	if err := e.Observer.Caches.Err(); err != nil {
		return err
	}
	if !e.Observer.Caches.Synced() || !e.Observer.Disaggregated.Listed() {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED, "the driver has just started and its caches are not filled yet")
	}
	return nil
}

// Ready returns nil once calls can be served, and why they can't until then.
func (e *Engine) Ready() error {
	if err := e.Filled(); err != nil {
		return err
	}
	if !e.leads() {
		return standbyError()
	}
	return nil
}

// countEarlier counts the groups that releases in scope had in flight with an earlier driver.
func (e *Engine) countEarlier() {
	if e.admission.limit == 0 {
		return
	}
	for _, key := range e.Observer.Held() {
		if e.Covers(key) {
			_, _, _ = e.lookLocked(key) // its worker reports an error
		}
	}
	e.admission.startAdmitting()
}

// leads reports whether the engine may act.
func (e *Engine) leads() bool { return e.config.Leads == nil || e.config.Leads() }

// standbyError is the error of an engine that does not lead.
func standbyError() error {
	return drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED,
		"this server stands by, since another one holds the Lease and acts: connect through the Service, which has the leader only")
}

// Enqueue adds a workload to the queue.
func (e *Engine) Enqueue(key types.NamespacedName) { e.queue.Add(key) }

// Idle reports whether the queue is empty. Tests and benchmarks begin then.
func (e *Engine) Idle() bool { return e.queue.Len() == 0 }

// Covers reports whether the workload is one that the engine works on.
func (e *Engine) Covers(key types.NamespacedName) bool { return e.locks.covers(key) }

// Lock waits until no other goroutine works on the workload that a name means, and returns its key; a handover may change it
// meanwhile. The error has an ErrorReason if the engine may not work on it.
func (e *Engine) Lock(ctx context.Context, name types.NamespacedName) (key types.NamespacedName, unlock func(), err error) {
	key = name
	for {
		if unlock, err = e.locks.lock(ctx, key); err != nil {
			return key, nil, err
		}
		// The holder that this call waited for may have handed the workload over to another object.
		now := e.Observer.Caches.Resolve(key)
		if now == key {
			return key, unlock, nil
		}
		unlock()
		key = now
	}
}

// LastError returns the error that blocks the workload's release, nil if none does. A lost race does not: another pass follows.
func (e *Engine) LastError(key types.NamespacedName) error {
	return e.memories.get(key).blockingError()
}

// changed is called for every event about a workload.
func (e *Engine) changed(key types.NamespacedName) {
	if e.locks.covers(key) {
		e.queue.Add(key)
	}
}

// forget is called for every LeaderWorkerSet that was deleted, and again after the last pass over it.
func (e *Engine) forget(key types.NamespacedName) {
	if e.locks.readOnly || !e.locks.covers(key) {
		e.Observer.ForgetPolicy(key) // this engine restores no routes
	}
	e.memories.update(key, func(m *memory) { *m = memory{} })
	e.admission.tryRecord(key, plan.Decision{}, nil)
}
