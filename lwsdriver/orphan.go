// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"
	"log/slog"

	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
)

// sweepOrphans lets go of what a release added to a workload that no longer exists; garbage collection does the rest.
func (d *Driver) sweepOrphans(ctx context.Context, key types.NamespacedName) error {
	s := &seen{key: key, added: nil}
	for _, w := range d.caches.added(key) {
		if !holds(w) {
			continue
		}
		s.added = map[string]*workload{w.Name: w}
		for _, action := range []plan.Action{plan.LetGo{Name: w.Name}, plan.DeleteCanary{Name: w.Name}} {
			if _, isDelete := action.(plan.DeleteCanary); isDelete && w.DeletionTimestamp != nil {
				continue
			}
			if err := d.do(ctx, s, action); err != nil {
				return err
			}
			if fresh := d.caches.workload(keyOf(w)); fresh != nil {
				s.added[w.Name] = fresh
			}
		}
	}
	return nil
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
