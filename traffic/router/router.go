// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package router

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/informer"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

const (
	// syncTimeout bounds how long Check waits for caches to sync.
	syncTimeout = 10 * time.Second
	// cacheLag is how far caches normally lag behind the API server.
	cacheLag = 500 * time.Millisecond
	// checkInterval is the interval at which Check reads the caches.
	checkInterval = 20 * time.Millisecond
)

// Router reads the objects that carry the traffic of releases. Its methods are safe for concurrent use.
type Router struct {
	log     *slog.Logger
	sources map[string]*informer.Informer // by kind
}

// Config configures a Router.
type Config struct {
	// Core and Dynamic are clients of the cluster. Required.
	Core    kubernetes.Interface
	Dynamic dynamic.Interface
	// Log is required.
	Log *slog.Logger
	// Namespace limits the caches to one namespace. Empty means all of them.
	Namespace string
	// Changed is called after every change of an object that may carry traffic, of whatever release, with the kinds of package
	// traffic. A change of a Service's endpoints is one of the Service. Without namespace and name: the cache of that kind has synced,
	// or has failed to, which may concern every release. Required. It must not block.
	Changed func(namespace, kind, name string)
}

// New returns a Router. It makes no request.
func New(c Config) *Router {
	return &Router{log: c.Log, sources: newSources(c.Core, c.Dynamic, c.Namespace, c.Changed)}
}

// Run fills the caches that are asked for, until ctx ends, and returns once everything it started has stopped. It must be
// called once.
func (r *Router) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for _, i := range r.sources {
		running.Go(func() { i.Run(ctx) })
	}
}

// Sources returns what fills the caches that the objects of a release are read from, with those of Services and their endpoints. Without
// objects: of all kinds.
func (r *Router) Sources(objects ...traffic.Key) (sources []*informer.Source) {
	for kind, i := range r.sources {
		of := func(o traffic.Key) bool { return o.Kind == kind }
		if len(objects) == 0 || kind == traffic.KindService || kind == kindSlice || slices.ContainsFunc(objects, of) {
			sources = append(sources, i.Source())
		}
	}
	slices.SortFunc(sources, func(a, b *informer.Source) int { return cmp.Compare(a.Resource.Resource, b.Resource.Resource) })
	return sources
}

// Cache returns the cache of a kind, such as [traffic.KindService]. It is filled once it is started. Services are indexed by namespace
// (cache.NamespaceIndex).
func (r *Router) Cache(kind string) *informer.Informer { return r.sources[kind] }

// Pools returns the InferencePools of a namespace, none before a release needs them.
func (r *Router) Pools(namespace string) []*unstructured.Unstructured {
	return informer.List[*unstructured.Unstructured](r.sources[traffic.KindInferencePool], cache.NamespaceIndex, namespace)
}

// Check returns why a release can't begin, see [traffic.Check]. It waits for caches to sync, and a moment for objects that
// were written just before.
func (r *Router) Check(ctx context.Context, s traffic.Setup) (err error) {
	var synced time.Time
	_ = wait.PollUntilContextTimeout(ctx, checkInterval, syncTimeout, true, func(context.Context) (bool, error) {
		if err = r.check(s); drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_NOT_SYNCED {
			return false, nil
		}
		synced = cmp.Or(synced, time.Now())
		return err == nil || time.Since(synced) >= cacheLag, nil
	})
	return err
}

func (r *Router) check(s traffic.Setup) error {
	w, err := r.look(s)
	if err != nil {
		return err
	}
	return traffic.Check(s, w)
}

// Snapshot returns an observation of a release's traffic, from caches only. It starts the informers that the release needs.
func (r *Router) Snapshot(s traffic.Setup) *traffic.Observed {
	w, err := r.look(s)
	if err != nil {
		return &traffic.Observed{Setup: s, Unread: drivererr.ProblemOf(err)}
	}
	return &traffic.Observed{Setup: s, World: w}
}
