// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"
	"log/slog"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// sweepOrphans gives back what a release had borrowed for a workload that no longer exists, and lets go of what it added;
// garbage collection does the rest.
func (d *Driver) sweepOrphans(ctx context.Context, key types.NamespacedName) error {
	s := &seen{key: key, added: nil}
	if kept := d.observer.policyOf(key); kept != nil {
		if err := d.giveBack(ctx, key, newSetup(gone(key, kept.of), unknownRevision, *kept.policy, nil)); err != nil {
			return err
		}
	}
	for _, w := range d.caches.added(key) {
		if err := d.giveBackTraffic(ctx, key, w); err != nil {
			return err
		}
		if !holds(w) {
			continue
		}
		s.added = map[string]*workload{w.Name: w}
		for _, action := range []plan.Action{plan.LetGo{Name: w.Name}, plan.DeleteCanary{Name: w.Name}} {
			if _, isDelete := action.(plan.DeleteCanary); isDelete && w.DeletionTimestamp != nil {
				continue
			}
			if _, err := d.do(ctx, s, action); err != nil {
				return err
			}
			if fresh := d.caches.workload(keyOf(w)); fresh != nil {
				s.added[w.Name] = fresh
			}
		}
	}
	return d.giveBackAutoscalers(ctx, s)
}

// giveBackTraffic gives routes and Services back to a user whose workload is gone: they may be there for the next one of
// its name.
func (d *Driver) giveBackTraffic(ctx context.Context, key types.NamespacedName, added *workload) error {
	policy, _, err := trafficPolicyOn(added)
	if policy == nil {
		return err
	}
	var uid types.UID
	if owner := metav1.GetControllerOf(added); owner != nil {
		uid = owner.UID
	}
	return d.giveBack(ctx, key, newSetup(gone(key, uid), added.Name, *policy, nil))
}

// gone is a workload of which no more is known.
func gone(key types.NamespacedName, uid types.UID) *workload {
	return &workload{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: uid}}
}

// giveBack makes all writes that leave nothing of a release on the objects of its traffic.
func (d *Driver) giveBack(ctx context.Context, key types.NamespacedName, setup traffic.Setup) error {
	limit := maxWrites + writesPerObject*len(setup.Objects())
	for range limit {
		wrote, what, err := d.router.Apply(ctx, setup, traffic.Desired{})
		switch err = contractError(err); {
		case drivererr.Retryable(err):
			return err
		case err != nil:
			// A person must act, and nobody is there to be told. The pods must not stay for that.
			d.log.Warn("can't give traffic back", slog.String("workload", key.String()), slog.Any("error", err))
			return nil
		case what == "":
			return nil
		case wrote:
			d.log.Info(what, slog.String("workload", key.String()))
		}
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_INTERNAL, "%s: %d writes in a row and its traffic is still not given back", key, limit)
}

// freeCopy takes our finalizer off a workload that is being deleted and that no release added: it came with a copied
// manifest, or somebody took the labels off. Nobody else would, and the deletion would never end.
func (d *Driver) freeCopy(ctx context.Context, key types.NamespacedName) error {
	w := d.caches.workload(key)
	if w == nil || w.DeletionTimestamp == nil || !holds(w) {
		return nil
	}
	if _, added := addedTo(w); added {
		return nil
	}
	wrote, err := d.applier.unhold(ctx, key, w)
	if err != nil {
		return contractError(fmt.Errorf("let go of a copy: %w", err))
	}
	if wrote {
		d.log.Info("let go of a copy of what a release adds", slog.String("workload", key.String()))
	}
	return nil
}
