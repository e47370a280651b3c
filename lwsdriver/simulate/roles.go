// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"slices"

	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/capacity"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/simulate/native"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Role is a role of a DisaggregatedSet.
type Role struct {
	plan.Role

	// Old and New are its templates before and after the release.
	Old, New lws.LeaderWorkerTemplate
}

// child is a LeaderWorkerSet, of a role at a revision or the only one of a kind.
type child struct {
	*native.Set

	name string
	// role and slice are those of a child of a DisaggregatedSet.
	role  Role
	slice int
}

// newChildren creates those of the old revision at rest, and those of the new one without groups, as LWS does under the hold.
func (w *world) newChildren() {
	if len(w.in.Roles) == 0 {
		return
	}
	w.bounds = &plan.Bounds{Stable: oldRevision, Min: map[string]int{}}
	for slice := range max(w.in.Slices, 1) {
		for _, role := range w.in.Roles {
			member := plan.Member(slice, role.Name)
			w.bounds.Min[member] = role.Replicas
			for revision, replicas := range map[string]int{oldRevision: role.Replicas, newRevision: 0} {
				// A release of a set scales children and rolls none of them.
				set := native.NewSet(replicas, record.Native(record.Hold()), revision)
				w.children = append(w.children, child{set, stableName + "-" + revision + "-" + member, role, slice})
			}
		}
	}
	slices.SortFunc(w.children, func(a, b child) int { return -cmp.Compare(a.name, b.name) }) // the old ones first
}

// observeRoles returns what the driver's observer would, about a DisaggregatedSet.
func (w *world) observeRoles() plan.Observation {
	o := plan.Observation{
		Now: w.time(), Record: &w.record, Policy: w.policy, Slices: max(w.in.Slices, 1), Bounds: w.bounds, BoundsEnforced: true,
		Stable: plan.Workload{Name: stableName, Revision: newRevision, Observed: true},
	}
	for _, role := range w.in.Roles {
		role.Size = int(ptr.Deref(role.New.Size, 1))
		o.Roles = append(o.Roles, role.Role)
	}
	for _, c := range w.children {
		view := w.workload(c)
		o.Children = append(o.Children, plan.Child{
			Name: c.name, Role: c.role.Name, Revision: c.Template, Slice: c.slice, Replicas: c.Replicas, Groups: view.Groups,
		})
	}
	return plan.Judge(o)
}

// template returns the template of a child.
func (c child) template() lws.LeaderWorkerTemplate {
	if c.Template == newRevision {
		return c.role.New
	}
	return c.role.Old
}

// roles returns the groups of each role.
func (w *world) roles() (all []*pb.Role) {
	for _, role := range w.in.Roles {
		r := &pb.Role{Name: role.Name, Replicas: int32(role.Replicas * max(w.in.Slices, 1))} //nolint:gosec // from an int32
		for _, c := range w.children {
			switch exist, ready := int32(len(c.Groups)), int32(c.Ready()); { //nolint:gosec // numbers of groups
			case c.role.Name != role.Name:
			case c.Template == newRevision:
				r.Updated, r.UpdatedReady = r.Updated+exist, r.UpdatedReady+ready
			default:
				r.Stable, r.StableReady = r.Stable+exist, r.StableReady+ready
			}
		}
		all = append(all, r)
	}
	return all
}

// needs returns what the groups request, of which so many are old and updated, and, to subtract, what the workload requests at rest.
func (w *world) needs(old, updated int) (now, rest []capacity.Need) {
	if len(w.children) == 0 {
		now = []capacity.Need{{Template: w.in.Old, Groups: old}, {Template: w.in.New, Groups: updated}}
		return now, []capacity.Need{{Template: w.in.Old, Groups: w.in.Replicas}}
	}
	for _, c := range w.children {
		now = append(now, capacity.Need{Template: c.template(), Groups: len(c.Groups)})
	}
	for _, role := range w.in.Roles {
		rest = append(rest, capacity.Need{Template: role.Old, Groups: role.Replicas * max(w.in.Slices, 1)})
	}
	return now, rest
}
