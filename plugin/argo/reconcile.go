// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"context"
	"fmt"
	"time"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// fieldManager names the Controller in managed fields.
const fieldManager = "lockstep-argo"

// reasonUnread is the reason of the event on a Rollout whose workload the driver does not show.
const reasonUnread = "WorkloadUnread"

// reconcileRollout performs the next action for a Rollout. It returns when to reconcile it again without an event.
func (c *Controller) reconcileRollout(ctx context.Context, key types.NamespacedName) (time.Duration, error) {
	ro := c.get(key)
	if ro == nil {
		return 0, nil
	}
	config, mistake := c.ReadLenient(ro)
	if mistake != nil {
		c.warnOnce(ro, "InvalidConfig", mistake.Error())
	}
	if config == nil {
		return 0, nil
	}
	if n := ptr.Deref(ro.Spec.Replicas, 1); n > 0 {
		c.warnOnce(ro, "PlaceholderPods", fmt.Sprintf("spec.replicas is %d, so Argo runs %[1]d pods of the Rollout's template, which serve nothing: "+
			"set 0. Scale %s instead", n, plugin.ObjectOf(plugin.RefOf(ro.Namespace, config.Workload))))
	}
	f, err := c.facts(ctx, ro, config)
	if err != nil {
		return 0, err
	}
	workload := types.NamespacedName{Namespace: f.Namespace, Name: config.Workload}
	if f.Deleting {
		c.queue.Add(item{workload: true, NamespacedName: workload})
		return 0, nil
	}
	if config.Unfit != nil {
		c.warnOnce(ro, "InvalidConfig", config.Unfit.Error()) // before a step meets it
	}
	if config.Ignored != "" {
		c.warnOnce(ro, "NativeFieldIgnored", "no effect: "+config.Ignored)
	}
	t := NewTarget(c.Driver, f, config)
	observed, err := c.lookBesideRivals(ctx, ro, &t)
	if err != nil && !isTransient(err) {
		c.warnOnce(ro, reasonUnread, fmt.Sprintf("this Rollout neither holds nor releases %s: %s", plugin.ObjectOf(t.Ref), status.Convert(err).Message()))
	}
	if err != nil {
		return 0, err
	}
	c.remember(ro.UID, func(m *remembered) { delete(m.warned, reasonUnread) })
	m := planMove(t, observed)
	if m.Outcome == converge.Wait && m.annotate == nil {
		if why := t.heldFor(observed); why != "" {
			c.warnOnce(ro, "TemplateHeld", why)
		}
		return 0, nil
	}
	if sure, err := c.confirmed(ctx, ro, m); !sure || err != nil {
		return requeueSoon, err
	}
	c.Logger.Info(m.Why, "rollout", key.String(), "workload", workload.String())
	return c.perform(ctx, ro, t, m)
}

// perform makes a move. It returns when to reconcile the Rollout again: there may be a next move.
func (c *Controller) perform(ctx context.Context, ro *v1alpha1.Rollout, t Target, m move) (_ time.Duration, err error) {
	if m.annotate != nil {
		if err = c.annotate(ctx, t.Facts, m); err == nil && m.annotate.template == t.Facts.Noted.restarted() {
			c.warn(ro, "StartedOver", m.Why)
		}
	} else {
		_, err = t.Call(ctx, m.Request)
	}
	notDone := fmt.Sprintf("%s: %s", m.Why, status.Convert(err).Message())
	switch {
	case plugin.Reason(err) == pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED:
		c.warnOnce(ro, "NotDone", notDone)
		return requeueBlocked, nil // at the next change of the release
	case err != nil && !isTransient(err):
		c.warn(ro, "NotDone", notDone)
	}
	return requeueSoon, err
}

// lookBesideRivals returns the state of a Rollout's workload, and adds to the Target a Rollout that releases the workload instead.
func (c *Controller) lookBesideRivals(ctx context.Context, ro *v1alpha1.Rollout, t *Target) (*pb.BatchContext, error) {
	observed, err := t.Look(ctx)
	if err == nil && t.Facts.Rival == "" {
		t.Facts.Rival, err = c.rivalByOtherName(ctx, *t, observed)
	}
	if rival := t.Facts.Rival; rival != "" {
		c.warnOnce(ro, "WorkloadTaken", fmt.Sprintf(
			"%s is released by Rollout %s: this Rollout releases nothing, delete one of the two", plugin.ObjectOf(t.Ref), rival))
	}
	return observed, err
}

// confirmed reports whether the API server has the Rollout as a call was decided for it. The cache may lag, and take a release that Argo
// has just begun for one that is over; a release that was ended can't be continued.
func (c *Controller) confirmed(ctx context.Context, ro *v1alpha1.Rollout, m move) (bool, error) {
	if m.Outcome != converge.Call {
		return true, nil // an annotation carries a resourceVersion
	}
	now, err := c.read(ctx, keyOf(ro))
	return now != nil && now.UID == ro.UID && now.ResourceVersion == ro.ResourceVersion, err
}

// read returns a Rollout as the API server has it, nil if it does not exist or doesn't decode.
func (c *Controller) read(ctx context.Context, key types.NamespacedName) (*v1alpha1.Rollout, error) {
	u, err := c.Client.Resource(rolloutResource).Namespace(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // It does not exist.
	}
	if err != nil {
		return nil, fmt.Errorf("get Rollout %s: %w", key, err)
	}
	return readRollout(u), nil
}

// Current reports whether the API server has the Rollout with these facts: it was neither replaced, nor aborted, nor started over.
func (c *Controller) Current(ctx context.Context, f Facts) (bool, error) {
	ro, err := c.read(ctx, types.NamespacedName{Namespace: f.Namespace, Name: f.Name})
	if ro == nil {
		return false, err
	}
	now := ReadFacts(ro)
	return now.UID == f.UID && now.Hash == f.Hash && now.Abort == f.Abort && !now.Deleting && now.Noted.template == f.Noted.template, nil
}

// facts returns the facts of a Rollout, as the Controller has watched it.
func (c *Controller) facts(ctx context.Context, ro *v1alpha1.Rollout, config *Config) (Facts, error) {
	f := ReadFacts(ro)
	// After the last step Argo calls the router, which promotes. A status may have the index of the steps before an edit: Argo notes the
	// generation before it starts over.
	f.StepsDone = false
	f.Rival = c.Rival(f, config.Workload)
	if !f.Current || f.Hash == "" {
		return f, nil
	}
	// The status is of the Rollout's generation. Is its hash that of the template, too?
	found, err := c.readReplicaSet(ctx, ro)
	known := c.recall(ro.UID)
	f.Current = found && known.set.revision == f.Noted.template
	f.SeenAsked = known.progress.hash == f.Hash && (known.progress.asked || ro.Spec.RollbackWindow != nil &&
		known.stable.hash == known.progress.stable && known.set.created.Before(known.stable.created))
	return f, err
}

// readReplicaSet remembers the ReplicaSet that Argo made for the current hash, and reports whether it exists. It tells for which of the
// Rollout's templates the status stands: if Argo can't process a spec, it notes the generation and leaves the older hash. A ReplicaSet's
// template never changes, so each is read once.
func (c *Controller) readReplicaSet(ctx context.Context, ro *v1alpha1.Rollout) (bool, error) {
	hash := ro.Status.CurrentPodHash
	if c.recall(ro.UID).set.hash == hash {
		return true, nil
	}
	set, err := c.Client.Resource(replicaSetResource).Namespace(ro.Namespace).Get(ctx, ro.Name+"-"+hash, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("get the ReplicaSet of Rollout %s/%s: %w", ro.Namespace, ro.Name, err)
	}
	if !metav1.IsControlledBy(set, ro) || set.GetLabels()[v1alpha1.DefaultRolloutUniqueLabelKey] != hash {
		return false, nil // it is another Rollout's
	}
	revision, _, err := unstructured.NestedString(set.Object, "spec", "template", "metadata", "annotations", AnnotationRevision)
	if err != nil {
		return false, fmt.Errorf("read the template of ReplicaSet %s/%s: %w", set.GetNamespace(), set.GetName(), err)
	}
	c.remember(ro.UID, func(m *remembered) {
		if m.set.hash == m.progress.stable {
			m.stable = m.set // Argo skips the steps to one that is older, within a rollbackWindow
		}
		m.set = replicaSet{hash: hash, revision: revision, created: set.GetCreationTimestamp().Time}
	})
	return true, nil
}

// noteProgress notes what asks for a Rollout's template while that is not stable.
func (c *Controller) noteProgress(ro *v1alpha1.Rollout) {
	if f := ReadFacts(ro); f.Stable != "" && f.Hash != "" && f.Stable != f.Hash {
		c.remember(ro.UID, func(m *remembered) { m.progress = progress{hash: f.Hash, stable: f.Stable, asked: f.asked()} })
	}
}

func (c *Controller) annotate(ctx context.Context, f Facts, m move) error {
	_, err := c.Client.Resource(rolloutResource).Namespace(f.Namespace).Patch(ctx, f.Name, types.MergePatchType,
		m.annotate.patch(f), metav1.PatchOptions{FieldManager: fieldManager})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("annotate Rollout %s/%s: %w", f.Namespace, f.Name, err)
	}
	return nil
}

// reconcileWorkload disowns a workload whose Rollout is gone, once its release has been rolled back. A workload that another
// Rollout names stays under hold, and so does one whose template waits.
func (c *Controller) reconcileWorkload(ctx context.Context, key types.NamespacedName) (time.Duration, error) {
	observed, err := c.look(ctx, key)
	if observed == nil {
		return 0, err
	}
	if key, err = c.nameOf(ctx, key, observed); err != nil {
		return 0, err
	}
	names := []types.NamespacedName{key}
	if object := (types.NamespacedName{Namespace: key.Namespace, Name: plugin.NameOf(observed.GetWorkload())}); object != key {
		names = append(names, object)
	}
	claimants := c.rolloutsOf(names...)
	goal := converge.Goal{
		Kind: converge.Disown, Workload: plugin.RefOf(key.Namespace, key.Name), Owner: observed.GetOwner(),
		Why: "its Rollout is gone",
	}
	owner, inFlight := c.owner(observed, claimants), plugin.InFlight(observed)
	if owner == ownerForeign && inFlight {
		return requeueBlocked, nil // another host's release has to end first, and no event tells when it does
	}
	// The owner goes on, or another Rollout takes the workload over once no release is in flight.
	if owner == ownerAlive || len(claimants) > 0 && !inFlight {
		for _, i := range c.requests(names...) {
			c.queue.Add(i)
		}
		return 0, nil
	}
	m := converge.Next(goal, observed)
	if m.Outcome != converge.Wait {
		c.Logger.Info(m.Why, "workload", key.String())
	}
	switch m.Outcome {
	case converge.Call:
		// The cache may not know of a Rollout yet for which another Controller has begun a release.
		if lags, err := c.lags(ctx, observed); lags || err != nil {
			return requeueSoon, err
		}
		_, err = converge.CallDriver(ctx, c.Driver, m.Request)
		return requeueSoon, err // the release has an end, and then the hold
	case converge.Wait:
		return requeueSoon, nil
	case converge.Held:
		return requeueBlocked, nil
	default:
		return 0, nil
	}
}

// nameOf returns the name by which the owner's Rollout knows the workload at a key. After a handover that is the name of another object; during
// the handover both objects have the release.
func (c *Controller) nameOf(ctx context.Context, key types.NamespacedName, observed *pb.BatchContext) (types.NamespacedName, error) {
	namespace, name, _ := ownerOf(observed.GetOwner())
	ro := c.get(types.NamespacedName{Namespace: namespace, Name: name})
	if ro == nil {
		return key, nil
	}
	named, err := workloadOf(ro)
	if err != nil || named.Name == "" {
		return key, nil //nolint:nilerr // the Rollout's own reconciliation reports it
	}
	other, err := c.look(ctx, named)
	if err != nil {
		return key, err
	}
	if other.GetOwner() == observed.GetOwner() && other.GetReleaseId() == observed.GetReleaseId() {
		return named, nil
	}
	return key, nil
}

// rivalByOtherName returns the Rollout that has the last release of a workload which it knows by another name, "" if there is none.
func (c *Controller) rivalByOtherName(ctx context.Context, t Target, observed *pb.BatchContext) (string, error) {
	if observed.GetOwner() == t.Facts.Owner {
		return "", nil
	}
	key := types.NamespacedName{Namespace: t.Facts.Namespace, Name: t.Config.Workload}
	if known, err := c.nameOf(ctx, key, observed); known == key || err != nil {
		return "", err
	}
	_, name, _ := ownerOf(observed.GetOwner())
	return name, nil
}

// lags reports whether the API server has the owner's Rollout as the cache does not have it.
func (c *Controller) lags(ctx context.Context, observed *pb.BatchContext) (bool, error) {
	namespace, name, ours := ownerOf(observed.GetOwner())
	if !ours {
		return false, nil
	}
	key := types.NamespacedName{Namespace: namespace, Name: name}
	ro, err := c.read(ctx, key)
	if ro == nil || ro.DeletionTimestamp != nil {
		return false, err
	}
	cached := c.get(key)
	return cached == nil || cached.ResourceVersion != ro.ResourceVersion, nil
}

// ownership tells who began the last release of a workload.
type ownership int

const (
	// ownerGone is a Rollout that does not exist, or no owner.
	ownerGone ownership = iota
	// ownerAlive is a Rollout that names the workload.
	ownerAlive
	// ownerForeign is another host, or a Rollout in a namespace that this Controller does not watch.
	ownerForeign
)

func (c *Controller) owner(observed *pb.BatchContext, claimants []*v1alpha1.Rollout) ownership {
	namespace, name, ours := ownerOf(observed.GetOwner())
	if observed.GetOwner() == "" {
		return ownerGone
	}
	if !ours || c.Namespace != "" && c.Namespace != namespace {
		return ownerForeign
	}
	// A Rollout with a mistake in its configuration has not given up its workload.
	if hasName(claimants, name) || c.unreadable(types.NamespacedName{Namespace: namespace, Name: name}) {
		return ownerAlive
	}
	return ownerGone
}

// look returns the state of a workload, nil if it does not exist.
func (c *Controller) look(ctx context.Context, key types.NamespacedName) (*pb.BatchContext, error) {
	observed, err := Target{Driver: c.Driver, Ref: plugin.RefOf(key.Namespace, key.Name)}.Look(ctx)
	if plugin.Reason(err) == pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND {
		return nil, nil //nolint:nilnil // see above
	}
	return observed, err
}
