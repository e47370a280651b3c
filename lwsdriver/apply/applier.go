// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	lwsclient "sigs.k8s.io/lws/client-go/clientset/versioned"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/informer"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	// writeTimeout bounds one write, webhooks included.
	writeTimeout = 30 * time.Second
	// catchUpTimeout bounds how long the caches may take to see a write that succeeded.
	catchUpTimeout = 10 * time.Second
)

// Applier makes the writes. Each is one request with a precondition (a restart may be two), and returns once the caches show it, so
// the next observation is never older than the last write.
type Applier struct {
	core     kubernetes.Interface
	sets     lwsclient.Interface
	dynamic  dynamic.Interface
	observer *observe.Observer
	metadata []string
}

// New returns an Applier that waits for the caches of the observer. It creates canaries with metadata of these prefixes only.
func New(
	core kubernetes.Interface, sets lwsclient.Interface, generic dynamic.Interface, observer *observe.Observer, metadata ...string,
) *Applier {
	return &Applier{core: core, sets: sets, dynamic: generic, observer: observer, metadata: metadata}
}

// Apply makes the write of an action. It writes nothing if the object already is as it should be.
//
//nolint:funlen // a line for each kind of action
func (a *Applier) Apply(ctx context.Context, s *observe.Snapshot, action plan.Action) (wrote bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	switch t := action.(type) {
	case plan.SetStable:
		return a.setStable(ctx, s, t)
	case plan.RestartGroup:
		return a.restartGroup(ctx, s, t)
	case plan.SetTraffic:
		return a.setTraffic(ctx, s, t)
	case plan.LabelServing:
		return a.labelServing(ctx, s, t)
	case plan.LabelGroup:
		return a.labelGroup(ctx, s, t)
	case plan.HoldAutoscaler:
		return a.holdAutoscaler(ctx, s, t)
	case plan.ReleaseAutoscaler:
		return a.releaseAutoscaler(ctx, s.Key, t)
	case plan.SaveRevision:
		return a.saveRevision(ctx, s, t)
	case plan.DeleteRevision:
		return a.deleteRevision(ctx, s, t)
	case plan.RestoreTemplate:
		return a.restoreTemplate(ctx, s, t)
	case plan.RemoveRecord:
		return a.removeRecord(ctx, s, t)
	case plan.CreateCanary:
		return a.createCanary(ctx, s, t)
	case plan.ScaleCanary:
		return a.scaleCanary(ctx, s, t)
	case plan.RepairCanary:
		return a.repairCanary(ctx, s, t)
	case plan.RemoveFinalizer:
		return a.removeFinalizer(ctx, s, t)
	case plan.DeleteCanary:
		return a.deleteWorkload(ctx, s.Key, s.AddedObjects[t.Name])
	case plan.SetBounds:
		return a.setBounds(ctx, s, t)
	case plan.ScaleChild:
		return a.scaleChild(ctx, s, t)
	case plan.RemoveBounds:
		return true, a.removeBounds(ctx, s)
	case plan.TransferHistory:
		return a.transferHistory(ctx, s, t)
	case plan.HandOver:
		return a.handOver(ctx, s, t)
	case plan.DeleteStable:
		return a.deleteWorkload(ctx, s.Key, s.StableObject)
	default:
		return false, fmt.Errorf("apply %T: unknown action", action)
	}
}

func (a *Applier) setStable(ctx context.Context, s *observe.Snapshot, t plan.SetStable) (bool, error) {
	// The UID shows that a copied manifest, which has the annotation too, is another workload.
	t.Record.UID = s.StableObject.UID
	// LWS truncates its ControllerRevisions once all groups are updated, and a rollback needs the template.
	if t.SaveTemplate {
		if err := a.saveTemplate(ctx, s, &t.Record); err != nil {
			return false, err
		}
	}
	value, err := t.Record.EncodeOver(s.StableObject.Annotations[record.RecordAnnotation])
	if err != nil {
		return false, err
	}
	p := newPatch(s.StableObject, record.RecordAnnotation)
	p.annotate(record.RecordAnnotation, value)
	p.removeNotes()
	if t.Rolling != nil && !record.SameRolling(*t.Rolling, s.Stable.Rolling) {
		p.setRolling(*t.Rolling)
	}
	if t.RestoreTemplate {
		p.setTemplate(*t.Record.Release.StableTemplate)
	}
	if t.Replicas != nil && *t.Replicas != s.Stable.Replicas {
		p.add(*t.Replicas, "spec", "replicas")
	}
	return a.patch(ctx, s.Key, p)
}

// labelServing labels a leader pod, on condition that it is the observed one.
func (a *Applier) labelServing(ctx context.Context, s *observe.Snapshot, t plan.LabelServing) (bool, error) {
	pod := types.NamespacedName{Namespace: s.Key.Namespace, Name: t.Leader}
	seen := a.observer.Caches.Pod(pod)
	if seen == nil {
		return false, nil // the next observation decides
	}
	var value any
	if t.Serves {
		value = record.Serving
	}
	// A request that arrives late must not lead requests to a leader that another driver has drained since.
	unchanged := t.Serves
	return a.labelPod(ctx, s.Key, seen, unchanged, map[string]any{record.ServingLabel: value},
		func(now *observe.Pod) bool { return now.Serving == t.Serves })
}

// removeRecord removes everything of Lockstep's from the workload.
func (a *Applier) removeRecord(ctx context.Context, s *observe.Snapshot, t plan.RemoveRecord) (bool, error) {
	p := newPatch(s.StableObject, record.RecordAnnotation)
	p.annotate(record.RecordAnnotation, "")
	p.removeLabel(record.WorkloadLabel)
	p.removeNotes()
	if s.Set != nil {
		// The record is removed last, so that a Disown that fails in between can be repeated.
		if err := a.removeBounds(ctx, s); err != nil {
			return false, err
		}
		return a.patch(ctx, s.Key, p)
	}
	if !record.SameRolling(t.Rolling, s.Stable.Rolling) {
		p.setRolling(t.Rolling)
	}
	return a.patch(ctx, s.Key, p)
}

func (a *Applier) createCanary(ctx context.Context, s *observe.Snapshot, t plan.CreateCanary) (bool, error) {
	if err := a.checkMetadata(s); err != nil {
		return false, err
	}
	canary, err := newCanary(s, t)
	if err != nil {
		return false, err
	}
	got, err := a.sets.LeaderworkersetV1().LeaderWorkerSets(s.Key.Namespace).
		Create(ctx, canary, metav1.CreateOptions{FieldManager: record.FieldManager})
	if apierrors.IsAlreadyExists(err) {
		isCanary, readErr := a.alreadyCreated(ctx, s.Key, observe.KeyOf(canary))
		if isCanary || readErr != nil {
			return false, readErr
		}
		// The error below says that another object has the canary's name.
	}
	if err != nil {
		return false, fmt.Errorf("create LeaderWorkerSet %s/%s: %w", canary.Namespace, canary.Name, err)
	}
	return true, a.CatchUp(ctx, s.Key, got)
}

// alreadyCreated reports whether the object with the canary's name is the canary, created by another driver or by a request
// whose response was lost. It waits for the caches, which may not show it yet.
func (a *Applier) alreadyCreated(ctx context.Context, key, canary types.NamespacedName) (bool, error) {
	var existing *lws.LeaderWorkerSet
	// An event about a foreign object is not about the workload, so both keys are waited for.
	err := a.awaitCondition(ctx, cachedWorkloads, informer.AnyVersion, func() bool {
		existing = a.observer.Caches.Workload(canary)
		return existing != nil
	}, key, canary)
	if err != nil {
		return false, fmt.Errorf("read the LeaderWorkerSet %s that exists already: %w", canary, err)
	}
	return observe.StableKey(existing) == key, nil
}

func (a *Applier) scaleCanary(ctx context.Context, s *observe.Snapshot, t plan.ScaleCanary) (bool, error) {
	canary := s.AddedObjects[t.Name]
	p := newPatch(canary, record.TargetAnnotation)
	// Groups and target are one patch, so they cannot disagree.
	if int(ptr.Deref(canary.Spec.Replicas, 1)) != t.Replicas {
		p.add(t.Replicas, "spec", "replicas")
	}
	if t.Target != nil {
		value, err := t.Target.Encode()
		if err != nil {
			return false, err
		}
		p.annotate(record.TargetAnnotation, value)
	}
	return a.patch(ctx, s.Key, p)
}

// checkMetadata refuses a record whose policy has metadata that the driver's operator does not allow: it was edited, or another
// driver has written it.
func (a *Applier) checkMetadata(s *observe.Snapshot) error {
	if bad := record.CheckMetadata(s.Policy, a.metadata); len(bad) > 0 {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_RECORD_INVALID,
			"the record of LeaderWorkerSet %s: %s: %s. Or roll the release back", s.Key, bad[0].Field, bad[0].Description)
	}
	return nil
}

func (a *Applier) repairCanary(ctx context.Context, s *observe.Snapshot, t plan.RepairCanary) (bool, error) {
	if err := a.checkMetadata(s); err != nil {
		return false, err
	}
	// The canary has partition 0, so LWS rolls it to the restored template by itself.
	p := newPatch(s.AddedObjects[t.Name], record.TargetAnnotation)
	p.setTemplate(record.Template{
		LeaderWorkerTemplate: observe.CanaryTemplate(s.StableObject, s.Policy), NetworkConfig: s.StableObject.Spec.NetworkConfig,
	})
	return a.patch(ctx, s.Key, p)
}

func (a *Applier) removeFinalizer(ctx context.Context, s *observe.Snapshot, t plan.RemoveFinalizer) (bool, error) {
	if observe.IsSet(s.Key) {
		return a.dropBoundsFinalizer(ctx, s)
	}
	// A workload may be a copy of the manifest of a canary, which has the finalizer.
	if t.Name == s.Key.Name {
		return a.dropFinalizer(ctx, s.Key, s.StableObject)
	}
	canary := s.AddedObjects[t.Name]
	if observe.Lingers(canary) && !hasNoPods(s, t.Name) {
		// Another client deleted it in the background. Its groups would outlive it, and a new object of the same name would
		// wait for their workers forever.
		return a.deleteWorkload(ctx, s.Key, canary)
	}
	return a.dropFinalizer(ctx, s.Key, canary)
}

// hasNoPods reports whether an added workload is known to have no pod.
func hasNoPods(s *observe.Snapshot, name string) bool {
	for _, w := range s.Added {
		if w.Name == name {
			return !slices.ContainsFunc(w.Groups, func(g plan.Group) bool { return g.Revision != "" || g.ReadyPods > 0 })
		}
	}
	return false
}

// dropFinalizer removes the driver's finalizer.
func (a *Applier) dropFinalizer(ctx context.Context, key types.NamespacedName, w *lws.LeaderWorkerSet) (bool, error) {
	p := newPatch(w, record.TargetAnnotation)
	p.test(w.Finalizers, "metadata", "finalizers")
	p.add(withoutFinalizer(w.Finalizers), "metadata", "finalizers")
	return a.patch(ctx, key, p)
}

// deleteWorkload deletes in the foreground: the object is removed last, so once it is gone its groups are, too. A request that arrives late must not
// delete groups that another driver has given requests since, so the object must be as it was observed.
func (a *Applier) deleteWorkload(ctx context.Context, key types.NamespacedName, w *lws.LeaderWorkerSet) (bool, error) {
	err := a.sets.LeaderworkersetV1().LeaderWorkerSets(w.Namespace).Delete(ctx, w.Name, metav1.DeleteOptions{
		PropagationPolicy: ptr.To(metav1.DeletePropagationForeground),
		Preconditions:     &metav1.Preconditions{UID: &w.UID, ResourceVersion: &w.ResourceVersion},
	})
	return a.awaitDeleted(ctx, key, cachedWorkloads, "", "LeaderWorkerSet "+observe.KeyOf(w).String(), err, func() bool {
		now := a.observer.Caches.Workload(observe.KeyOf(w))
		if now == nil || now.UID != w.UID {
			return true
		}
		// w may be terminating already, so the timestamp alone does not show this deletion.
		return now.DeletionTimestamp != nil && now.ResourceVersion != w.ResourceVersion
	})
}

// awaitDeleted returns the result of a deletion once the cache of the resource shows it. An object that was gone before counts as not deleted.
// version is that of [informer.Source.NoteBehind].
func (a *Applier) awaitDeleted(
	ctx context.Context, key types.NamespacedName, resource, version, what string, err error, gone func() bool,
) (bool, error) {
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("delete %s: %w", what, err)
	}
	return err == nil, a.awaitCondition(ctx, resource, version, gone, key)
}

// patch sends a patch, on condition that its base has not changed.
func (a *Applier) patch(ctx context.Context, key types.NamespacedName, p *patch) (bool, error) {
	if len(p.changes) == 0 {
		return false, nil
	}
	raw, err := p.encode()
	if err != nil {
		return false, err
	}
	if p.base.Kind == observe.KindSet {
		return a.patchSet(ctx, key, p, raw)
	}
	got, err := a.sets.LeaderworkersetV1().LeaderWorkerSets(p.base.Namespace).
		Patch(ctx, p.base.Name, types.JSONPatchType, raw, metav1.PatchOptions{FieldManager: p.manager})
	if err != nil {
		return false, fmt.Errorf("patch LeaderWorkerSet %s: %w", observe.KeyOf(p.base), changedIfTestFailed(err))
	}
	return true, a.catchUp(ctx, key, got, true) // the cache has shown the base
}

// CatchUp waits until the cache has a new object, or a newer version. Key is the workload that it was written for.
func (a *Applier) CatchUp(ctx context.Context, key types.NamespacedName, wrote *lws.LeaderWorkerSet) error {
	// While the cache does not show it, it looks like a deleted one, so only one that was already being deleted counts as gone.
	return a.catchUp(ctx, key, wrote, wrote.DeletionTimestamp != nil)
}

// catchUp is awaitVersion for a LeaderWorkerSet.
func (a *Applier) catchUp(ctx context.Context, key types.NamespacedName, wrote *lws.LeaderWorkerSet, gone bool) error {
	cached := func() *lws.LeaderWorkerSet { return a.observer.Caches.Workload(observe.KeyOf(wrote)) }
	// Events are about the object itself once it is no longer an added one.
	return awaitVersion(ctx, a, cachedWorkloads, wrote, gone, cached, key, observe.KeyOf(wrote))
}

// Resources whose caches are waited for. No decision rests on that of the history, so it has no name.
const cachedWorkloads, cachedPods, cachedHistory = "leaderworkersets", "pods", ""

// awaitVersion waits until the cache of a resource shows an object as written, or a newer version. With gone, an object that was deleted or
// recreated meanwhile counts, too.
func awaitVersion[T interface {
	comparable
	metav1.Object
}](ctx context.Context, a *Applier, resource string, wrote metav1.Object, gone bool, cached func() T, keys ...types.NamespacedName) error {
	return a.awaitCondition(ctx, resource, wrote.GetResourceVersion(), func() bool {
		var none T
		now := cached()
		if now == none || now.GetUID() != wrote.GetUID() {
			return gone
		}
		order, err := resourceversion.CompareResourceVersion(now.GetResourceVersion(), wrote.GetResourceVersion())
		return err != nil || order >= 0
	}, keys...)
}

// awaitCondition waits until the cache of a resource shows what the API server has answered, which it checks after each change of one of the
// workloads. Until it does, nothing is decided that rests on that cache. version is that of [informer.Source.NoteBehind].
func (a *Applier) awaitCondition(ctx context.Context, resource, version string, done func() bool, keys ...types.NamespacedName) error {
	ctx, cancel := context.WithTimeoutCause(ctx, catchUpTimeout, observe.ErrBehind)
	defer cancel()
	if err := a.observer.Changes.Await(ctx, done, keys...); err != nil {
		a.observer.Freshness.NoteBehind(resource, version, done)
		return fmt.Errorf("%s: %w", keys[0], err)
	}
	return nil
}

// awaitPod waits until the caches show that done holds for a pod, or that it is gone or another one. The version is empty if it is not known.
func (a *Applier) awaitPod(
	ctx context.Context, seen *observe.Pod, key types.NamespacedName, version string, done func(now *observe.Pod) bool,
) error {
	return a.awaitCondition(ctx, cachedPods, version, func() bool {
		now := a.observer.Caches.Pod(types.NamespacedName{Namespace: seen.Namespace, Name: seen.Name})
		return now == nil || now.UID != seen.UID || done(now)
	}, key)
}

// awaitPodChange waits until the caches show another version of a pod than the one that was observed.
func (a *Applier) awaitPodChange(ctx context.Context, seen *observe.Pod, key types.NamespacedName) error {
	return a.awaitPod(ctx, seen, key, "", func(now *observe.Pod) bool { return now.ResourceVersion != seen.ResourceVersion })
}
