// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"encoding/json"

	appsv1 "k8s.io/api/apps/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// unsafeChanges compares the template with the newest of LWS's ControllerRevisions that differs in a field that LWS reads from the
// spec: the template in the spec has one, too, once LWS has recorded it.
func (r *reader) unsafeChanges() {
	w := r.inventory.Workload
	all, err := of(r.set, "ControllerRevision", r.namespace, func() *appsv1.ControllerRevision { return &appsv1.ControllerRevision{} })
	if err != nil && r.err == nil {
		r.err = err
	}
	var newest int64
	for _, cr := range all {
		stored := struct {
			Spec record.Template `json:"spec"`
		}{}
		if cr.Labels[lws.SetNameLabelKey] != w.Name || cr.Revision <= newest || json.Unmarshal(cr.Data.Raw, &stored) != nil {
			continue
		}
		if changes := plan.CompareTemplates(stored.Spec, record.TemplateOf(w)); len(changes) > 0 {
			newest, r.inventory.Unsafe = cr.Revision, changes
		}
	}
}
