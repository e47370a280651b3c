// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	lwsclient "sigs.k8s.io/lws/client-go/clientset/versioned"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/traffic/router"
)

const (
	// writeTimeout bounds one write, webhooks included.
	writeTimeout = 30 * time.Second
	// catchUpTimeout bounds how long the caches may take to see a write that succeeded.
	catchUpTimeout = 10 * time.Second
)

// applier makes the writes. Each is one request with a precondition, and returns once the caches have seen it, so that
// the next look is never older than the last write.
type applier struct {
	client  lwsclient.Interface
	core    kubernetes.Interface
	router  *router.Router
	scalers *autoscalers
	budgets *budgets
	caches  *caches
	hub     *hub

	snapshots *snapshots
}

// apply makes the write that an action stands for. Nothing is written when the object already is as it should be.
func (a *applier) apply(ctx context.Context, s *seen, action plan.Action) (wrote bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	switch t := action.(type) {
	case plan.SetStable:
		return a.setStable(ctx, s, t)
	case plan.RestartGroup:
		return a.restartGroup(ctx, s, t)
	case plan.SetTraffic:
		return a.setTraffic(ctx, s, t)
	case plan.MarkLeader:
		return a.markLeader(ctx, s, t)
	case plan.LabelGroup:
		return a.labelGroup(ctx, s, t)
	case plan.HoldAutoscaler:
		return a.holdAutoscaler(ctx, s, t)
	case plan.ReleaseAutoscaler:
		return a.releaseAutoscaler(ctx, s.key, t)
	case plan.SetBudget:
		return a.setBudget(ctx, s, t)
	case plan.DropBudget:
		return a.dropBudget(ctx, s, t)
	case plan.Remember:
		return a.remember(ctx, s, t)
	case plan.Forget:
		return a.forget(ctx, s, t)
	case plan.BringBack:
		return a.bringBack(ctx, s, t)
	case plan.GiveBack:
		return a.giveBack(ctx, s, t)
	case plan.CreateCanary:
		return a.createCanary(ctx, s, t)
	case plan.ScaleCanary:
		return a.scaleCanary(ctx, s, t)
	case plan.RepairCanary:
		return a.repairCanary(ctx, s, t)
	case plan.LetGo:
		return a.letGo(ctx, s, t)
	case plan.DeleteCanary:
		return a.deleteCanary(ctx, s, t)
	default:
		return a.applyAdoption(ctx, s, action)
	}
}

func (a *applier) setStable(ctx context.Context, s *seen, t plan.SetStable) (bool, error) {
	t.Record.UID = s.stable.UID
	if t.SaveTemplate {
		if err := a.saveTemplate(ctx, s, &t.Record); err != nil {
			return false, err
		}
	}
	value, err := t.Record.Encode()
	if err != nil {
		return false, err
	}
	p := newPatch(s.stable, record.RecordAnnotation)
	p.annotate(record.RecordAnnotation, value)
	p.takeNotes()
	if t.Rolling != nil && !record.SameRolling(*t.Rolling, s.Stable.Rolling) {
		p.rolling(*t.Rolling)
	}
	if t.RestoreTemplate {
		p.template(*t.Record.Release.StableTemplate)
	}
	if t.Replicas != nil && *t.Replicas != s.Stable.Replicas {
		p.add(*t.Replicas, "spec", "replicas")
	}
	return a.patch(ctx, s.key, p)
}

// setTraffic makes the router's next write. It reads the routes anew, so that it may be another one than was announced.
func (a *applier) setTraffic(ctx context.Context, s *seen, t plan.SetTraffic) (bool, error) {
	wrote, _, err := a.router.Apply(ctx, *s.setup, t.Desired)
	return wrote, err
}

// markLeader labels a leader pod, on condition that it is the one that was seen.
func (a *applier) markLeader(ctx context.Context, s *seen, t plan.MarkLeader) (bool, error) {
	pod := types.NamespacedName{Namespace: s.key.Namespace, Name: t.Leader}
	seen := a.caches.pod(pod)
	if seen == nil {
		return false, nil // the next look tells
	}
	var value any
	if t.Serves {
		value = record.Serving
	}
	return a.labelPod(ctx, s.key, seen, map[string]any{record.ServingLabel: value},
		func(now *podView) bool { return now.serving == t.Serves })
}

// giveBack leaves nothing of Lockstep on the workload.
func (a *applier) giveBack(ctx context.Context, s *seen, t plan.GiveBack) (bool, error) {
	p := newPatch(s.stable, record.RecordAnnotation)
	p.annotate(record.RecordAnnotation, "")
	p.unlabel(record.WorkloadLabel)
	p.takeNotes()
	if !record.SameRolling(t.Rolling, s.Stable.Rolling) {
		p.rolling(t.Rolling)
	}
	return a.patch(ctx, s.key, p)
}

func (a *applier) createCanary(ctx context.Context, s *seen, t plan.CreateCanary) (bool, error) {
	canary, err := newCanary(s, t)
	if err != nil {
		return false, err
	}
	got, err := a.client.LeaderworkersetV1().LeaderWorkerSets(s.key.Namespace).
		Create(ctx, canary, metav1.CreateOptions{FieldManager: record.FieldManager})
	if apierrors.IsAlreadyExists(err) {
		made, errMade := a.made(ctx, s.key, keyOf(canary))
		if made || errMade != nil {
			return false, errMade
		}
	}
	if err != nil {
		return false, fmt.Errorf("create LeaderWorkerSet %s/%s: %w", canary.Namespace, canary.Name, err)
	}
	return true, a.catchUp(ctx, s.key, got)
}

// made says whether the object that is in the way is the canary itself, made by another driver or by a request whose
// answer was lost. The caches may be about to see it; while they don't, nobody can say.
func (a *applier) made(ctx context.Context, key, canary types.NamespacedName) (bool, error) {
	var there *lws.LeaderWorkerSet
	err := a.until(ctx, func() bool {
		there = a.caches.workload(canary)
		return there != nil
	}, key, canary) // an event about somebody else's object is not about the workload
	if err != nil {
		return false, fmt.Errorf("look at the LeaderWorkerSet %s that exists already: %w", canary, err)
	}
	return stableKey(there) == key, nil
}

func (a *applier) scaleCanary(ctx context.Context, s *seen, t plan.ScaleCanary) (bool, error) {
	canary := s.added[t.Name]
	p := newPatch(canary, record.TargetAnnotation)
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
	return a.patch(ctx, s.key, p)
}

// repairCanary replaces the template as a whole: a merge would keep what somebody added.
func (a *applier) repairCanary(ctx context.Context, s *seen, t plan.RepairCanary) (bool, error) {
	next := s.added[t.Name].DeepCopy()
	next.ManagedFields = nil // the cache keeps half of them
	next.Spec.LeaderWorkerTemplate = canaryTemplate(s.stable, s.Policy)
	next.Spec.NetworkConfig = s.stable.Spec.NetworkConfig.DeepCopy()
	got, err := a.client.LeaderworkersetV1().LeaderWorkerSets(s.key.Namespace).
		Update(ctx, next, metav1.UpdateOptions{FieldManager: record.FieldManager})
	if err != nil {
		return false, fmt.Errorf("update LeaderWorkerSet %s/%s: %w", next.Namespace, next.Name, err)
	}
	return true, a.catchUp(ctx, s.key, got)
}

func (a *applier) letGo(ctx context.Context, s *seen, t plan.LetGo) (bool, error) {
	if t.Name == s.key.Name {
		return a.unhold(ctx, s.key, s.stable)
	}
	canary := s.added[t.Name]
	if lingers(canary) && !s.without(t.Name) {
		// Somebody else deleted it, in the background. Without this its groups would outlive it, and one made again under
		// the same name would wait for ever for the workers that are still there.
		return a.deleteCanary(ctx, s, plan.DeleteCanary(t))
	}
	return a.unhold(ctx, s.key, canary)
}

// lingers says whether a workload is being deleted in such a way that its groups would outlive it.
func lingers(w *lws.LeaderWorkerSet) bool {
	return w.DeletionTimestamp != nil && !slices.Contains(w.Finalizers, metav1.FinalizerDeleteDependents)
}

// unhold takes our finalizer off.
func (a *applier) unhold(ctx context.Context, key types.NamespacedName, w *lws.LeaderWorkerSet) (bool, error) {
	p := newPatch(w, record.TargetAnnotation)
	p.test(w.Finalizers, "metadata", "finalizers")
	p.add(slices.DeleteFunc(slices.Clone(w.Finalizers), func(f string) bool { return f == record.Finalizer }),
		"metadata", "finalizers")
	return a.patch(ctx, key, p)
}

// deleteCanary deletes in the foreground: the object goes last, so that its absence says that its groups are gone.
func (a *applier) deleteCanary(ctx context.Context, s *seen, t plan.DeleteCanary) (bool, error) {
	canary := s.added[t.Name]
	err := a.client.LeaderworkersetV1().LeaderWorkerSets(s.key.Namespace).Delete(ctx, canary.Name, metav1.DeleteOptions{
		PropagationPolicy: ptr.To(metav1.DeletePropagationForeground),
		Preconditions:     &metav1.Preconditions{UID: &canary.UID},
	})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("delete LeaderWorkerSet %s/%s: %w", canary.Namespace, canary.Name, err)
	}
	return true, a.until(ctx, func() bool {
		now := a.caches.workload(keyOf(canary))
		return now == nil || now.UID != canary.UID ||
			(now.DeletionTimestamp != nil && now.ResourceVersion != canary.ResourceVersion)
	}, s.key)
}

// patch sends what changed, on condition that what it is based on is still so.
func (a *applier) patch(ctx context.Context, key types.NamespacedName, p *patch) (bool, error) {
	if len(p.changes) == 0 {
		return false, nil
	}
	raw, err := p.encode()
	if err != nil {
		return false, err
	}
	got, err := a.client.LeaderworkersetV1().LeaderWorkerSets(p.base.Namespace).
		Patch(ctx, p.base.Name, types.JSONPatchType, raw, metav1.PatchOptions{FieldManager: p.manager})
	if testFailed(err) {
		err = fmt.Errorf("%w: %w", errChanged, err)
	}
	if err != nil {
		return false, fmt.Errorf("patch LeaderWorkerSet %s: %w", keyOf(p.base), err)
	}
	return true, a.catchUp(ctx, key, got)
}

// catchUp waits until the cache has the object as written, or something newer.
func (a *applier) catchUp(ctx context.Context, key types.NamespacedName, wrote *lws.LeaderWorkerSet) error {
	return a.until(ctx, func() bool {
		now := a.caches.workload(keyOf(wrote))
		if now == nil || now.UID != wrote.UID {
			// Gone, or gone and made again. A new object not being there yet looks the same, but it has no finalizer
			// to be let go of: what was just created or patched without being deleted stays.
			return wrote.DeletionTimestamp != nil
		}
		return !older(now, wrote)
	}, key, keyOf(wrote)) // it may not be an added one any more
}

// older says whether an object is known to be from before another state of it.
func older(now, wrote metav1.Object) bool {
	order, err := resourceversion.CompareResourceVersion(now.GetResourceVersion(), wrote.GetResourceVersion())
	return err == nil && order < 0
}

// until waits for what the caches are to show, and looks again after each change of one of the workloads.
func (a *applier) until(ctx context.Context, done func() bool, keys ...types.NamespacedName) error {
	ctx, cancel := context.WithTimeoutCause(ctx, catchUpTimeout, errBehind)
	defer cancel()
	changed, stop := a.hub.subscribe(keys...)
	defer stop()
	for !done() {
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", keys[0], context.Cause(ctx))
		}
	}
	return nil
}
