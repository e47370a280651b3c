// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/capacity"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
)

// Role is a role of a DisaggregatedSet.
type Role struct {
	Name string
	// Workload is the LeaderWorkerSet that LWS creates for the role.
	Workload *lws.LeaderWorkerSet
}

// IsMark reports whether LWS sets a label on the children of a DisaggregatedSet and on their pods, also over the user's own.
func IsMark(label string) bool {
	return label == "app" || strings.HasPrefix(label, disaggregated.GroupVersion.Group+"/")
}

// NewRole returns a role of a set. Child is the LeaderWorkerSet whose groups serve now, nil if there is none.
func NewRole(set metav1.Object, role disaggregated.DisaggregatedRoleSpec, child *lws.LeaderWorkerSet) Role {
	t := role.LeaderWorkerSetTemplateSpec.DeepCopy()
	w := &lws.LeaderWorkerSet{ObjectMeta: t.ObjectMeta, Spec: t.Spec}
	w.Namespace, w.Name = set.GetNamespace(), set.GetName()+"-"+role.Name
	marks := map[string]string{disaggregated.SetNameLabelKey: set.GetName(), disaggregated.RoleLabelKey: role.Name, "app": w.Name}
	if child != nil {
		w.Name, marks = child.Name, maps.Clone(child.Labels)
		maps.DeleteFunc(marks, func(key, _ string) bool { return !IsMark(key) })
	}
	for _, pod := range []*corev1.PodTemplateSpec{w.Spec.LeaderWorkerTemplate.LeaderTemplate, &w.Spec.LeaderWorkerTemplate.WorkerTemplate} {
		if pod != nil && pod.Labels == nil {
			pod.Labels = map[string]string{}
		}
		if pod != nil {
			maps.Copy(pod.Labels, marks)
		}
	}
	return Role{Name: role.Name, Workload: w}
}

// part is what an inventory of a role has beside the role itself.
type part struct {
	// set is the inventory of the DisaggregatedSet.
	set   *Inventory
	index int
	peak  capacity.Peak
}

// role returns the inventory of a role.
func (s *Inventory) role(index int) *Inventory {
	r, o := *s, plan.Observation{Slices: s.Slices}
	for _, role := range s.Roles {
		next := plan.Role{Name: role.Name, Replicas: replicasOf(role.Workload)}
		next.MaxUnavailable, next.MaxSurge = plan.PaceOf(role.Workload.Spec, next.Replicas)
		o.Roles = append(o.Roles, next)
	}
	r.Workload, r.Roles = s.Roles[index].Workload, nil
	r.Rolling = ptr.Deref(r.Workload.Spec.RolloutStrategy.RollingUpdateConfiguration, lws.RollingUpdateConfiguration{MaxUnavailable: intstr.FromInt32(1)})
	r.part = &part{set: s, index: index, peak: capacity.Peak{Added: plan.PeakOf(o, s.Policy.Style, o.Roles[index], s.Peak().Groups())}}
	return &r
}

// judged returns the inventories that a rule judges: that of the workload, or those of the roles of a DisaggregatedSet.
func (rule Rule) judged(s *Inventory) []*Inventory {
	if rule.Whole || len(s.Roles) == 0 {
		return []*Inventory{s}
	}
	all := make([]*Inventory, 0, len(s.Roles))
	for i := range s.Roles {
		all = append(all, s.role(i))
	}
	return all
}

// inSet returns a hit in a role as one in its DisaggregatedSet.
func (p *part) inSet(h Hit) Hit {
	if p == nil {
		return h
	}
	h.Message = fmt.Sprintf("role %s: %s", p.set.Roles[p.index].Name, h.Message)
	if h.Object == nil {
		h.Field = fmt.Sprintf("spec.roles[%d].%s", p.index, h.Field)
	}
	return h
}
