// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	"github.com/lockstep-rollouts/lockstep/plugin/host"
	"github.com/lockstep-rollouts/lockstep/plugin/informer"
	"github.com/lockstep-rollouts/lockstep/plugin/informer/guard"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	// requeueSoon is when the next action is looked for after one was performed.
	requeueSoon = time.Second
	// requeueBlocked is when an action is tried again that a person must unblock.
	requeueBlocked = 30 * time.Second
	// maxBackoff is the longest pause between tries. No informer of workloads reports that one was created.
	maxBackoff = 10 * time.Second
)

// Controller does for Rollouts and their workloads what Argo asks no plugin for. It holds the workload of a Rollout from
// the moment both exist, writes the workload's template revision into the Rollout's pod template so that an edit of the
// workload starts the Rollout, ends releases that Argo has ended, and disowns a workload whose Rollout was deleted.
//
// It derives every action from the cluster. Two Controllers at once, or one that did not run for a while, do no harm:
// writes on Rollouts carry a resourceVersion, and calls of the driver are idempotent.
type Controller struct {
	// Driver and Client are required.
	Driver Driver
	Client dynamic.Interface
	// Logger is required.
	Logger *slog.Logger
	// Events records warnings on Rollouts. Nil means none.
	Events events.EventRecorder
	// Namespace restricts the Controller to one namespace. Empty means all.
	Namespace string
	// InstanceID restricts the Controller to the Rollouts of one instance of Argo's controller: those whose label
	// argo-rollouts.argoproj.io/controller-instance-id has this value, or those without the label if it is empty.
	InstanceID string

	setup    sync.Once
	rollouts cache.SharedIndexInformer
	queue    workqueue.TypedRateLimitingInterface[item]

	mu    sync.Mutex
	known map[types.UID]*remembered
}

// remembered is what a Controller remembers of a Rollout.
type remembered struct {
	workload types.NamespacedName // as its configuration last named it
	warned   map[string]string    // the last message of each reason
	progress progress
	// set is the ReplicaSet that was read last, and stable the one that was read before it and was stable in progress.
	set, stable replicaSet
}

// progress is what was seen of a Rollout while its hash was not stable.
type progress struct {
	hash, stable string
	asked        bool
}

// replicaSet is what was read of the ReplicaSet that Argo made for a hash.
type replicaSet struct {
	hash, revision string // the annotation AnnotationRevision of its template
	created        time.Time
}

// remember calls f with what is remembered of a Rollout.
func (c *Controller) remember(uid types.UID, f func(*remembered)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known[uid] == nil {
		c.known[uid] = &remembered{warned: map[string]string{}}
	}
	f(c.known[uid])
}

// recall returns a copy of what is remembered of a Rollout.
func (c *Controller) recall(uid types.UID) (known remembered) {
	c.remember(uid, func(m *remembered) { known = *m })
	return known
}

// item is an element of the queue: a Rollout, or a workload that may have lost its Rollout.
type item struct {
	workload bool
	types.NamespacedName
}

func (c *Controller) init() {
	c.setup.Do(func() {
		c.known = map[types.UID]*remembered{}
		c.queue = workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[item](200*time.Millisecond, maxBackoff))
		c.rollouts = newRolloutInformer(c.Client, c.Namespace)
	})
}

// owns reports whether this instance of Argo's controller handles a Rollout. Those of other instances are rivals only.
func (c *Controller) owns(ro metav1.Object) bool {
	id, labelled := ro.GetLabels()[v1alpha1.LabelKeyControllerInstanceID]
	// Argo's controller without an instance id skips every Rollout with the label, even an empty one.
	return id == c.InstanceID && labelled == (id != "")
}

// requests are the Rollouts of a workload that this instance handles.
func (c *Controller) requests(names ...types.NamespacedName) []item {
	rollouts := c.rolloutsOf(names...)
	items := make([]item, 0, len(rollouts))
	for _, ro := range rollouts {
		if c.owns(ro) {
			items = append(items, item{NamespacedName: keyOf(ro)})
		}
	}
	return items
}

// affected returns what to reconcile after a change of a workload: its Rollouts, and the workload itself if none of them is its owner. That
// may have been deleted while no Controller watched, or knows the workload by the name before a handover.
func (c *Controller) affected(_ context.Context, workload types.NamespacedName, owner string) []item {
	items := c.requests(workload)
	namespace, name, ours := ownerOf(owner)
	if ours && (c.Namespace == "" || c.Namespace == namespace) && !hasName(c.rolloutsOf(workload), name) {
		items = append(items, item{workload: true, NamespacedName: workload})
	}
	return items
}

func hasName(all []*v1alpha1.Rollout, name string) bool {
	return slices.ContainsFunc(all, func(ro *v1alpha1.Rollout) bool { return ro.Name == name })
}

// Watch keeps the cache of Rollouts that [Controller.Rival] needs, until ctx ends. It reconciles none.
func (c *Controller) Watch(ctx context.Context) {
	c.init()
	c.rollouts.RunWithContext(ctx)
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	c.init()
	if _, err := c.rollouts.AddEventHandler(informer.OnChange(c.changed)); err != nil {
		return fmt.Errorf("watch Rollouts: %w", err)
	}
	follower := host.Follower[item]{Driver: c.Driver, Requests: c.affected, Logger: c.Logger}
	if err := follower.Start(ctx, c.queue); err != nil {
		return fmt.Errorf("watch workloads: %w", err)
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer c.queue.ShutDown() // before the wait for the worker, which it ends
	running.Go(func() { c.rollouts.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), c.rollouts.HasSynced) {
		return nil
	}
	running.Go(func() {
		for c.work(ctx) {
		}
	})
	<-ctx.Done()
	return nil
}

// changed handles the change of a Rollout.
func (c *Controller) changed(before, after any) {
	ro := rolloutIn(after)
	if was, ok := before.(metav1.Object); ok && (after == nil || ro != nil && ro.UID != was.GetUID()) { // also one that did not decode any more
		c.setWorkload(was, types.NamespacedName{})
		c.mu.Lock()
		delete(c.known, was.GetUID())
		c.mu.Unlock()
	}
	if ro == nil {
		return
	}
	c.noteProgress(ro)
	if workload, err := workloadOf(ro); err == nil { // an unreadable configuration loses no workload
		c.setWorkload(ro, workload)
	}
	if c.owns(ro) {
		c.queue.Add(item{NamespacedName: keyOf(ro)})
	}
}

// setWorkload notes which workload a Rollout names, if any. The one that it named before may be an orphan, if the Rollout is of this
// instance; otherwise a Rollout of this instance may inherit it.
func (c *Controller) setWorkload(ro metav1.Object, workload types.NamespacedName) {
	var old types.NamespacedName
	c.remember(ro.GetUID(), func(m *remembered) { old, m.workload = m.workload, workload })
	switch {
	case old.Name == "" || old == workload:
	case c.owns(ro):
		c.queue.Add(item{workload: true, NamespacedName: old})
	default:
		for _, i := range c.requests(old) {
			c.queue.Add(i)
		}
	}
}

// work reconciles one item. It returns false once the queue is shut down.
func (c *Controller) work(ctx context.Context) bool {
	i, quit := c.queue.Get()
	if quit || ctx.Err() != nil {
		return false
	}
	defer c.queue.Done(i)
	reconcile := c.reconcileRollout
	if i.workload {
		reconcile = c.reconcileWorkload
	}
	var after time.Duration
	var err error
	// A defect that one Rollout meets must not stop the others.
	if panicked := guard.Call(c.Logger, "reconciliation", i.String(), func() { after, err = reconcile(ctx, i.NamespacedName) }); panicked != nil {
		err = panicked
	}
	switch {
	case err == nil && after == 0:
		c.queue.Forget(i)
	case err == nil:
		c.queue.Forget(i)
		c.queue.AddAfter(i, after)
	case ctx.Err() != nil:
	case isTransient(err), plugin.Reason(err) == pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND:
		c.queue.AddRateLimited(i)
	default:
		c.Logger.Warn("reconcile", "item", i.String(), "workload", i.workload, "error", err)
		c.queue.AddAfter(i, requeueBlocked)
	}
	return true
}

// isTransient reports whether an error is gone, or another one, when the item is reconciled again.
func isTransient(err error) bool {
	var answer apierrors.APIStatus
	if errors.As(err, &answer) { // of the API server
		code := answer.Status().Code
		return code == http.StatusConflict || code == http.StatusTooManyRequests || code >= http.StatusInternalServerError
	}
	var network net.Error
	return errors.As(err, &network) || converge.Retryable(err) || converge.Outdated(err)
}

// warnOnce warns about a Rollout, unless that was the last warning with this reason.
func (c *Controller) warnOnce(ro *v1alpha1.Rollout, reason, message string) {
	var repeated bool
	c.remember(ro.UID, func(m *remembered) { repeated, m.warned[reason] = m.warned[reason] == message, message })
	if !repeated {
		c.warn(ro, reason, message)
	}
}

func (c *Controller) warn(ro *v1alpha1.Rollout, reason, message string) {
	c.Logger.Warn(message, "rollout", keyOf(ro).String(), "reason", reason)
	if c.Events == nil {
		return
	}
	about := &corev1.ObjectReference{
		APIVersion: "argoproj.io/v1alpha1", Kind: "Rollout",
		Namespace: ro.Namespace, Name: ro.Name, UID: ro.UID, ResourceVersion: ro.ResourceVersion,
	}
	c.Events.Eventf(about, nil, corev1.EventTypeWarning, reason, "Reconcile", "%s", host.Note(message))
}
