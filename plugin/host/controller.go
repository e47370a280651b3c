// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// ByWorkload is the index of the objects that a Controller reconciles by the name of their workload.
const ByWorkload = "workload"

const (
	// RequeueSoon is when an object is reconciled again after an error that needs no user.
	RequeueSoon = 500 * time.Millisecond
	// RequeueBlocked is when it is reconciled again after an error that a user must resolve.
	RequeueBlocked = 30 * time.Second
	// requeueConflict is when an object is reconciled again that has changed since the cache observed it.
	requeueConflict = 10 * time.Millisecond
)

// Driver is the part of the contract that these hosts need, as plugin.Client has it.
type Driver interface {
	converge.Driver
	plugin.WorkloadsWatcher
}

var _ Driver = (*plugin.Client)(nil)

// Controller reconciles objects of a kind that each name a workload.
type Controller struct {
	// Name is that of the Lease and of the source of events.
	Name string
	// API is the kind that is reconciled. Its cache has objects that do not decode, too.
	API         API
	AddToScheme func(*runtime.Scheme) error
	// Workload returns the name of an object's workload. Changes of the workload reconcile no object for which it is empty.
	Workload func(client.Object) string
	// Watches are the objects whose changes reconcile those of a workload, besides the workload.
	Watches []Watch
	// Cache restricts the caches of some kinds.
	Cache map[client.Object]cache.ByObject
	// IncludeGroups is set where changes of single groups count.
	IncludeGroups bool
	// Reconciler returns what reconciles with a client that reads from the caches.
	Reconciler func(manager.Manager, client.Client) reconcile.Reconciler
}

// Watch is a kind of objects that belong to a workload.
type Watch struct {
	Object client.Object
	// Workload returns the workload of an object, zero if it has none.
	Workload func(client.Object) client.ObjectKey
}

// Run reconciles the objects of a cluster until ctx ends.
func (c Controller) Run(ctx context.Context, config *rest.Config, s Settings) error {
	workloads, err := c.workloads(config)
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	if err := c.AddToScheme(scheme); err != nil {
		return fmt.Errorf("register kinds: %w", err)
	}
	m, err := New(config, s, c.Name, scheme, c.Cache)
	if err != nil {
		return err
	}
	object := Object(c.API.Kind)
	if err := m.GetFieldIndexer().IndexField(ctx, object, ByWorkload, func(o client.Object) []string {
		if name := c.Workload(decoded(scheme, o)); name != "" {
			return []string{name}
		}
		return nil
	}); err != nil {
		return fmt.Errorf("index objects by workload: %w", err)
	}
	f := Follower[reconcile.Request]{
		Driver: s.Driver, IncludeGroups: c.IncludeGroups, Logger: s.Logger,
		Requests: func(ctx context.Context, workload client.ObjectKey, _ string) []reconcile.Request {
			return c.requests(ctx, m, s, workload)
		},
	}
	kinds := []client.Object{object}
	// No predicate, so also for the host's own writes: a decision from an older status in the cache is repeated with the newest one.
	b := builder.ControllerManagedBy(m).For(object).WatchesRawSource(f).WithOptions(controller.Options{MaxConcurrentReconciles: 8})
	for _, w := range append(workloads, c.Watches...) {
		kinds = append(kinds, w.Object)
		b.Watches(w.Object, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return c.requests(ctx, m, s, w.Workload(decoded(scheme, o)))
		}))
	}
	if err := b.Complete(c.reconciler(m)); err != nil {
		return fmt.Errorf("set the controller up: %w", err)
	}
	return Run(ctx, m, kinds...)
}

// Patch writes a change of an object, with the observed resourceVersion as its precondition. The API server's answer replaces the object,
// including its status.
func Patch[T client.Object](ctx context.Context, c client.Client, o T, by client.FieldOwner, change func(T)) error {
	before, _ := o.DeepCopyObject().(client.Object)
	change(o)
	if err := c.Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), by); err != nil {
		return fmt.Errorf("write %s: %w", client.ObjectKeyFromObject(o), err) // the API server names the kind
	}
	return nil
}

// requests returns the objects of one workload.
func (c Controller) requests(ctx context.Context, m manager.Manager, s Settings, workload client.ObjectKey) []reconcile.Request {
	if workload.Name == "" {
		return nil
	}
	list := newList(c.API.Kind)
	err := m.GetClient().List(ctx, list, client.InNamespace(workload.Namespace), client.MatchingFields{ByWorkload: workload.Name})
	if err != nil {
		// A map function of controller-runtime can't return an error.
		s.Logger.Warn("list the objects of a workload", "workload", workload.String(), "error", err)
	}
	out := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return out
}

// Look returns the state of a workload, nil if it does not exist.
func Look(ctx context.Context, driver Driver, request *pb.CalculateBatchContextRequest) (*pb.BatchContext, error) {
	c, err := driver.Call(ctx, request)
	if plugin.Reason(err) == pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND {
		return nil, nil //nolint:nilnil // see above
	}
	return c, err
}

// Retry returns when an object is reconciled again after an error that needs no user. It returns false for other errors.
func Retry(ctx context.Context, err error) (reconcile.Result, bool) {
	switch {
	case ctx.Err() != nil, apierrors.IsNotFound(err):
		return reconcile.Result{}, true // the object is gone, or the process ends
	case apierrors.IsConflict(err):
		// The cache observes the other client's write within milliseconds.
		return reconcile.Result{RequeueAfter: requeueConflict}, true
	case converge.Retryable(err), converge.Outdated(err):
		return reconcile.Result{RequeueAfter: RequeueSoon}, true
	default:
		return reconcile.Result{}, false
	}
}
