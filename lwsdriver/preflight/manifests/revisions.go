// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	appsv1 "k8s.io/api/apps/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record/history"
)

// unsafeChanges compares the template with the newest of LWS's ControllerRevisions that differs in a field that LWS reads from the
// spec: the template in the spec has one, too, once LWS has recorded it.
func (r *reader) unsafeChanges() {
	w := r.inventory.Workload
	all, err := of[appsv1.ControllerRevision](r.set, "ControllerRevision", r.namespace)
	if err != nil && r.err == nil {
		r.err = err
	}
	var newest int64
	for _, cr := range all {
		stored, err := history.Decode(cr)
		if cr.Labels[lws.SetNameLabelKey] != w.Name || cr.Revision <= newest || err != nil {
			continue
		}
		if changes := plan.CompareTemplates(stored, record.TemplateOf(w)); len(changes) > 0 {
			newest, r.inventory.Unsafe = cr.Revision, changes
		}
	}
}
