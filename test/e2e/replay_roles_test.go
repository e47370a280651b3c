// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"cmp"
	"fmt"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// ruleRoles: while a DisaggregatedSet is adopted, no role has fewer ready groups than its replicas less maxUnavailable. Those of a scale-up
// count once all have been ready, those of the other roles included.
const ruleRoles rule = "ready groups of a role never below its replicas - maxUnavailable"

// roleFloor is what a role of a DisaggregatedSet owes its user.
type roleFloor struct {
	replicas, unavailable int
	// owed is the fewest replicas since all were ready last, and lowered is true until a scale-down is carried out, which the user may have
	// taken back by then.
	owed    int
	lowered bool
}

// stepRoleSet notes the replicas of the roles of a DisaggregatedSet.
func (r *replay) stepRoleSet(s *disaggregated.DisaggregatedSet, h clusterEvent) {
	r.lines = append(r.lines, fmt.Sprintf("%d roles of %s deleted=%t record=%s", h.version, s.Name, h.deleted, s.Annotations[recordAnnotation]))
	known := maps.Clone(r.roles)
	maps.DeleteFunc(r.roles, func(key string, _ *roleFloor) bool { return strings.HasPrefix(key, s.Name+"/") })
	if h.deleted || s.DeletionTimestamp != nil || s.Annotations[recordAnnotation] == "" {
		return
	}
	for i := range s.Spec.Roles {
		role, key := &s.Spec.Roles[i], s.Name+"/"+s.Spec.Roles[i].Name
		f := cmp.Or(known[key], &roleFloor{})
		r.roles[key] = f
		f.replicas, f.unavailable = int(ptr.Deref(role.Spec.Replicas, 1)), 1
		if c := role.Spec.RolloutStrategy.RollingUpdateConfiguration; c != nil {
			f.unavailable = scaled(c.MaxUnavailable, f.replicas, false)
			if f.unavailable == 0 && c.MaxSurge == intstr.FromInt32(0) {
				f.unavailable = 1 // nothing could be replaced
			}
		}
		f.lowered = f.lowered || f.replicas < f.owed
		f.owed = min(f.owed, f.replicas)
		r.lines = append(r.lines, fmt.Sprintf("%d role %s: %d replicas, maxUnavailable %d", h.version, key, f.replicas, f.unavailable))
	}
}

// roleKey returns the key in replay.roles of an object's role.
func roleKey(labels map[string]string) string {
	return labels[disaggregated.SetNameLabelKey] + "/" + labels[disaggregated.RoleLabelKey]
}

// checkRoles checks the ready groups of each role, at whatever revision.
func (r *replay) checkRoles() {
	if len(r.roles) == 0 {
		return
	}
	ready, stay, in := map[string]int{}, map[string]int{}, map[string]int{} // by role, and by child
	for _, p := range r.pods {
		if p.Labels[lws.WorkerIndexLabelKey] == "0" && p.DeletionTimestamp == nil && podReady(p) {
			ready[roleKey(p.Labels)]++
			in[p.Labels[lws.SetNameLabelKey]]++
		}
	}
	for _, child := range r.sets {
		stay[roleKey(child.Labels)] += min(in[child.Name], int(replicasOf(child))) // LeaderWorkerSet is to remove the others
	}
	whole := map[string]bool{} // by set: a group without its unit serves no requests
	for key, f := range r.roles {
		f.lowered = f.lowered && ready[key] > f.owed
		set, _, _ := strings.Cut(key, "/")
		was, known := whole[set]
		whole[set] = (was || !known) && !f.lowered && stay[key] >= f.replicas
	}
	for key, f := range r.roles {
		if set, _, _ := strings.Cut(key, "/"); whole[set] {
			f.owed = f.replicas
		}
		r.check(ruleRoles, ready[key] >= f.owed-f.unavailable, "%s has %d ready groups of %d, maxUnavailable is %d", key, ready[key], f.owed, f.unavailable)
	}
}
