// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
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
	Reconciler func(manager.Manager, client.Client) Reconciler
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
	if err := b.Complete(c.reconciler(m, s.Logger)); err != nil {
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
	c, err := converge.CallDriver(ctx, driver, request)
	if plugin.Reason(err) == pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND {
		return nil, nil //nolint:nilnil // see above
	}
	return c, err
}

// Reconciler reconciles the objects of a Controller.
type Reconciler interface {
	reconcile.Reconciler

	// Report writes to an object's status why it is not reconciled. Reconcile removes that.
	Report(ctx context.Context, object client.ObjectKey, reason, message string) error
}

// reportAfter is how long an error that needs no user lasts before it is reported.
const reportAfter = 30 * time.Second

// Reporting retries after errors of a Reconciler, and reports those that a user must resolve or that last.
type Reporting struct {
	Of     Reconciler
	Logger *slog.Logger

	// failing has the time of the first of an object's last errors in a row.
	failing sync.Map
}

// Reconcile reconciles an object.
func (r *Reporting) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	result, err := r.Of.Reconcile(ctx, request)
	switch {
	case err == nil:
		r.failing.Delete(request)
		return result, nil
	case errors.Is(err, errUndecodable):
		return result, err //nolint:wrapcheck // The Reconciler's own error.
	case ctx.Err() != nil, apierrors.IsNotFound(err):
		return reconcile.Result{}, nil //nolint:nilerr // The object is gone, or the process ends.
	case apierrors.IsConflict(err):
		// The cache observes the other client's write within milliseconds.
		return reconcile.Result{RequeueAfter: requeueConflict}, nil
	case needsNoUser(err):
		since, _ := r.failing.LoadOrStore(request, time.Now())
		if time.Since(since.(time.Time)) < reportAfter { //nolint:forcetypeassert // The line above stores it.
			return reconcile.Result{RequeueAfter: RequeueSoon}, nil
		}
	}
	r.Logger.Warn("reconcile", "object", request.String(), "error", err)
	reason, message := reasonOf(err)
	reported := r.Of.Report(ctx, request.NamespacedName, reason, message)
	if reported = client.IgnoreNotFound(reported); reported != nil && !apierrors.IsConflict(reported) || reason == reasonNotWritten {
		return reconcile.Result{}, errors.Join(err, reported) // the API server is asked again with backoff
	}
	return reconcile.Result{RequeueAfter: RequeueBlocked}, nil
}

// needsNoUser reports whether the same reconciliation may succeed later, or another one is decided when it is repeated.
func needsNoUser(err error) bool {
	reason := plugin.Reason(err)
	return converge.Retryable(err) || converge.Outdated(err) ||
		reason == pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS || reason == pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND
}

// reasonNotWritten is the reason of an error that is not the driver's.
const reasonNotWritten = "NotWritten"

// reasonOf returns the reason of an error in the form of condition reasons, and its message.
func reasonOf(err error) (reason, message string) {
	s := status.Convert(err)
	if reason := plugin.Reason(err); reason != pb.ErrorReason_ERROR_REASON_UNSPECIFIED {
		return plugin.CamelCase(drivererr.Name(reason)), s.Message()
	}
	switch s.Code() {
	case codes.Unknown:
		return reasonNotWritten, s.Message()
	case codes.Unavailable, codes.DeadlineExceeded:
		return "DriverUnavailable", "the driver does not answer: " + s.Message()
	default:
		return s.Code().String(), s.Message()
	}
}
