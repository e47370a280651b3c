// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	lwsclient "sigs.k8s.io/lws/client-go/clientset/versioned"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/informer"
	"github.com/lockstep-rollouts/lockstep/plugin/informer/broadcast"
	"github.com/lockstep-rollouts/lockstep/traffic"
	"github.com/lockstep-rollouts/lockstep/traffic/probe"
	"github.com/lockstep-rollouts/lockstep/traffic/router"
)

// Observer reads workloads from caches, and probes leaders for warm-up and drain. It never writes.
type Observer struct {
	// Caches, History, Nearby and Autoscalers are filled by informers.
	Caches      *Caches
	History     *History
	Nearby      *Nearby
	Autoscalers *Autoscalers
	// Disaggregated are the caches of DisaggregatedSets, filled on demand.
	Disaggregated *Sets
	// Router reads and checks the objects that carry requests.
	Router *router.Router
	// Freshness judges the caches that decisions rest on.
	Freshness *informer.Freshness
	// Changes signals changes of the caches and of the leaders' answers.
	Changes broadcast.Broadcaster[types.NamespacedName]

	prober prober
	config Config
	// policies has the traffic policies of releases that keepPolicy stored.
	policies cache.Indexer

	mu    sync.Mutex
	known map[types.NamespacedName]known
	asked map[types.NamespacedName]asked
}

// Config is what an Observer needs.
type Config struct {
	// Core, Sets and Dynamic are the clients for Kubernetes' own kinds, LeaderWorkerSets and routes.
	Core    kubernetes.Interface
	Sets    lwsclient.Interface
	Dynamic dynamic.Interface
	Log     *slog.Logger
	// Namespace limits the caches to one namespace. Empty means all.
	Namespace string
	// ReadOnly keeps the driver from writing, and from warming leaders up, which puts load on them.
	ReadOnly bool
	// ProbeHostNetwork: leaders on their node's network get requests, too.
	ProbeHostNetwork bool
	// Limits are what the operator allows policies.
	Limits record.Limits
	// Now is the clock of the observations.
	Now func() time.Time
	// Changed is called with the user's workload that a change is about, before Changes signals it.
	Changed func(types.NamespacedName)
	// Deleted is called with each LeaderWorkerSet and DisaggregatedSet that was deleted, before Changed.
	Deleted func(types.NamespacedName)
}

// New returns an Observer whose caches are empty until it runs. It makes no request.
func New(c Config) *Observer {
	o := &Observer{
		config: c, known: map[types.NamespacedName]known{},
		asked: map[types.NamespacedName]asked{}, policies: newPolicies(),
	}
	o.Caches = o.newCaches()
	o.Disaggregated = o.newSets()
	o.Router = router.New(router.Config{Core: c.Core, Dynamic: c.Dynamic, Log: c.Log, Namespace: c.Namespace, Changed: o.carrierChanged})
	o.Autoscalers = o.newAutoscalers()
	o.prober = probe.New(probe.Config{Log: c.Log, Changed: o.probed, HostNetwork: c.ProbeHostNetwork})
	o.History = o.newHistory()
	// It shares an informer of Router.
	o.Nearby = o.newNearby()
	o.Freshness = informer.NewFreshness(o.allChanged,
		slices.Concat(o.Caches.sources, o.Router.Sources(), o.Autoscalers.sources(), o.Disaggregated.sources())...)
	return o
}

// Run fills the caches and keeps them up to date until ctx ends. It returns once everything it started has stopped.
func (o *Observer) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	defer o.prober.Close()
	for _, i := range []*informer.Informer{o.Autoscalers.hpas, o.Autoscalers.scaled, o.History.informer, o.Disaggregated.sets, o.Disaggregated.bounds} {
		i.Start() // before calls are served, which wait for what is pending
	}
	// The other caches of DisaggregatedSets stay empty until Start, which the first set calls, and those of Nearby until a call does.
	for _, i := range append(o.Disaggregated.informers(), o.Autoscalers.hpas, o.Autoscalers.scaled, o.History.informer, o.Nearby.quotas, o.Nearby.budgets) {
		running.Go(func() { i.Run(ctx) })
	}
	running.Go(func() { o.Freshness.Run(ctx) })
	for _, i := range []cache.SharedIndexInformer{o.Caches.Workloads, o.Caches.Pods, o.Caches.revisions} {
		running.Go(func() { i.RunWithContext(ctx) })
	}
	running.Go(func() { o.Router.Run(ctx) })
	<-ctx.Done()
}

// now returns the wall clock without the monotonic reading: recordings have the former only, and must replay to the same
// decisions.
func (o *Observer) now() time.Time { return o.config.Now().Round(0) }

// changed is called for every event about a workload.
func (o *Observer) changed(key types.NamespacedName) {
	// The engine has queued the workload before a waiting call looks again.
	o.config.Changed(key)
	o.Notify(key)
}

// Notify signals a change of a workload, also to those who wait for it by an alias: a handover may have changed its name meanwhile.
func (o *Observer) Notify(key types.NamespacedName) {
	o.Changes.Notify(key)
	if w := o.Caches.Workload(key); w != nil {
		for _, alias := range aliases(w) {
			o.Changes.Notify(types.NamespacedName{Namespace: key.Namespace, Name: alias})
		}
	}
}

// allChanged is called when a cache that any workload may depend on is filled, or can't be: that of autoscalers or the
// history.
func (o *Observer) allChanged() {
	touch := func(w *lws.LeaderWorkerSet) {
		// Without its record, what a release added tells of it, or what is remembered.
		_, added := AddedTo(w)
		if w.Annotations[record.RecordAnnotation] != "" || added || o.policyOf(StableKey(w)) != nil {
			o.changed(StableKey(w))
		} else {
			o.Notify(StableKey(w)) // a call may wait for it; it needs no reconciling
		}
	}
	for _, w := range informer.All[*lws.LeaderWorkerSet](o.Caches.Workloads) {
		touch(w)
	}
	for _, set := range informer.All[*Set](o.Disaggregated.sets) {
		touch(set.View)
	}
}

// probed is called when the result of a leader's probe changes.
func (o *Observer) probed(owner string) {
	// Keep gives the workload's key as the owner of its probes.
	namespace, name, _ := strings.Cut(owner, "/")
	o.changed(types.NamespacedName{Namespace: namespace, Name: name})
}

// carrierChanged is called for every change of an object that may carry requests.
func (o *Observer) carrierChanged(namespace, kind, name string) {
	if name == "" && kind == traffic.KindService {
		o.allChanged() // Nearby reads Services, too
		return
	}
	for _, key := range o.workloadsRoutedBy(namespace, kind, name) {
		o.changed(key)
	}
}

// deleted is called for every LeaderWorkerSet that was deleted.
func (o *Observer) deleted(key types.NamespacedName) {
	o.Forget(key)
	o.config.Deleted(key)
}

// Forget drops what is remembered of a deleted workload, except for its traffic policy; see ForgetPolicy.
func (o *Observer) Forget(key types.NamespacedName) {
	o.Caches.Groups.forget(key)
	o.forget(key)
}
