// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/informer"
)

// RoleScalersResource has the numbers of groups of roles with scaling.mode External. LWS creates them from v0.10.0 on.
var RoleScalersResource = disaggregated.GroupVersion.WithResource("disaggregatedsetrolescalers")

// roleScalerIndex finds sets by the scalers of their roles.
const roleScalerIndex = "scaler"

// roleScaler is a cached DisaggregatedSetRoleScaler.
type roleScaler struct {
	metav1.ObjectMeta

	replicas int
}

// key returns its namespace, and its name as autoscalers refer to it.
func (r *roleScaler) key() types.NamespacedName {
	return types.NamespacedName{Namespace: r.Namespace, Name: autoscaler.RoleScaler(r.Name)}
}

func stripRoleScaler(u *unstructured.Unstructured) (*roleScaler, error) {
	replicas, _, err := unstructured.NestedInt64(u.Object, "spec", "replicas")
	if err != nil {
		return nil, fmt.Errorf("decode DisaggregatedSetRoleScaler %s/%s: %w", u.GetNamespace(), u.GetName(), err)
	}
	return &roleScaler{replicas: max(int(replicas), 0), ObjectMeta: metav1.ObjectMeta{
		Namespace: u.GetNamespace(), Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion(), OwnerReferences: u.GetOwnerReferences(),
		Generation: u.GetGeneration(),
	}}, nil
}

// scalerOf returns the namespace of the scaler of a role, and its name as autoscalers refer to it.
func (s *Set) scalerOf(role plan.Role) types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: autoscaler.RoleScaler(s.Name + "-" + role.Name)}
}

// hasScaledRole reports whether scalers have the number of groups of a role.
func (s *Set) hasScaledRole() bool {
	return slices.ContainsFunc(s.Roles, func(r plan.Role) bool { return r.External })
}

// roleScalers returns the scalers of those roles.
func (s *Set) roleScalers() (keys []string) {
	for _, role := range s.Roles {
		if role.External {
			keys = append(keys, s.scalerOf(role).String())
		}
	}
	return keys
}

// scaledBy returns the keys of the sets with a role that a scaler may scale.
func (s *Sets) scaledBy(scaler types.NamespacedName) (keys []types.NamespacedName) {
	for _, set := range informer.List[*Set](s.sets, roleScalerIndex, scaler.String()) {
		keys = append(keys, set.Key())
	}
	return keys
}

// autoscalerChanged is called for every event of an autoscaler with what it scales, or is held for.
func (o *Observer) autoscalerChanged(key types.NamespacedName) {
	if !autoscaler.IsRoleScaler(key.Name) {
		o.changed(key)
	}
	for _, set := range o.Disaggregated.scaledBy(key) {
		o.changed(set)
	}
}

// scaler returns the scaler of a set's role, nil and why its number is unknown if there is none. LWS ignores those of other owners, too.
func (s *Sets) scaler(set *Set, role string) (*roleScaler, string) {
	name := set.Name + "-" + role
	found := informer.Get[*roleScaler](s.scalers, types.NamespacedName{Namespace: set.Namespace, Name: name})
	switch err := s.scalers.Err(); {
	case err != nil:
		return nil, ContractError(err).Error()
	case found == nil:
		return nil, fmt.Sprintf("LeaderWorkerSet has not created DisaggregatedSetRoleScaler %s/%s yet", set.Namespace, name)
	case !metav1.IsControlledBy(found, set):
		return found, fmt.Sprintf("DisaggregatedSetRoleScaler %s/%s is not one of DisaggregatedSet %s: delete it, and LeaderWorkerSet creates it again",
			set.Namespace, name, set.Name)
	}
	return found, ""
}

// readScalers reads the numbers of groups of roles that scalers have, and the autoscalers of these and of children.
func (o *Observer) readScalers(s *Snapshot, set *Set) {
	var targets []string
	s.Roles = slices.Clone(set.Roles)
	for i := range s.Roles {
		role := &s.Roles[i]
		if !role.External {
			continue
		}
		found, unsized := o.Disaggregated.scaler(set, role.Name)
		// LWS ignores the scaler of another owner, so what scales that one scales no role.
		if found == nil || unsized == "" {
			targets = append(targets, set.scalerOf(*role).Name)
		}
		// While the scaler's number is unknown, the role keeps the groups that it has.
		last := plan.LastSize(s.Observation, role.Name)
		if unsized == "" && found.Generation == 1 && found.replicas != last { // LWS has added up all revisions and slices
			unsized = fmt.Sprintf("DisaggregatedSetRoleScaler %s/%s has %d groups, as LeaderWorkerSet counted them in all revisions and slices when it "+
				"created it, and the role keeps %d: scale it to the groups of one revision in one slice", found.Namespace, found.Name, found.replicas, last)
		}
		if role.Unsized, role.Replicas = unsized, last; unsized == "" {
			role.Replicas = found.replicas
		}
		role.MaxUnavailable, role.MaxSurge = plan.PaceOf(set.Specs[i].Spec, role.Replicas)
	}
	found, err := o.Autoscalers.scaling(s.Key, targets...)
	// No autoscaler can be missed where no role has a scaler.
	if s.Autoscalers = found; len(targets) > 0 {
		s.Unscanned = drivererr.ProblemOf(err)
	}
	for i := range s.Children {
		own, _ := o.Autoscalers.scaling(s.Key, s.Children[i].Name)
		if at := slices.IndexFunc(own, func(a plan.Autoscaler) bool { return a.Targets }); at >= 0 {
			s.Children[i].Autoscaler = own[at].String()
		}
	}
}
