// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"fmt"

	policyv1 "k8s.io/api/policy/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/disruption"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// judgeBudgets warns of PodDisruptionBudgets that do not protect groups as users expect, and refuses to create others for the
// same pods.
func (d *Driver) judgeBudgets(s *observe.Snapshot, p *pb.ReleasePolicy) ([]*pb.Warning, error) {
	budgets, err := d.engine.Observer.Nearby.Budgets(s.Key.Namespace)
	switch {
	case err != nil && p.GetGroupDisruptionBudget():
		return nil, fmt.Errorf("read the PodDisruptionBudgets of %s, beside which policy.group_disruption_budget creates others: %w",
			s.Key.Namespace, observe.ContractError(err))
	case err != nil:
		return []*pb.Warning{{
			Code: "BudgetsUnknown", Message: fmt.Sprintf("the PodDisruptionBudgets of %s could not be read, so their effect on %s is unknown: %v",
				s.Key.Namespace, s.Key.Name, err),
		}}, nil
	}
	var warnings []*pb.Warning
	parts := preflightOf(s, nil).Disruptables()
	for _, b := range budgets {
		if disruption.Ours(b) {
			continue
		}
		for _, w := range parts {
			if err := checkBudget(s, p, b, w); err != nil {
				return nil, err
			}
			if code, message := w.Judge(b); code != "" {
				warnings = append(warnings, &pb.Warning{Code: code, Message: message})
			}
		}
	}
	return warnings, nil
}

// checkBudget refuses a release with budgets of its own beside one of the user's for the same name or pods.
func checkBudget(s *observe.Snapshot, p *pb.ReleasePolicy, b *policyv1.PodDisruptionBudget, own disruption.Workload) error {
	if !p.GetGroupDisruptionBudget() {
		return nil
	}
	object := fmt.Sprintf("PodDisruptionBudget %s/%s", b.Namespace, b.Name)
	if b.Name == record.BudgetName(s.Key.Name, false) || b.Name == record.BudgetName(s.Key.Name, true) {
		return drivererr.WithMetadata(drivererr.New(pb.ErrorReason_ERROR_REASON_NAME_TAKEN,
			"%s has the name of one that the release creates, and is not Lockstep's: rename or delete it", object), "object", object)
	}
	policy, _ := record.ParsePolicy(p)
	added := own
	added.Name, added.Template = s.CanaryName(s.Stable.Revision), observe.CanaryTemplate(s.StableObject, policy)
	for _, w := range []disruption.Workload{own, added} {
		if leaders, workers := w.Caught(b); leaders+workers > 0 {
			return drivererr.WithMetadata(drivererr.New(pb.ErrorReason_ERROR_REASON_DISRUPTION_BUDGET_CONFLICT,
				"%s selects %d pods of %s/%s, and Kubernetes evicts no pod that two budgets select: remove it during the "+
					"release, or leave out policy.group_disruption_budget", object, leaders+workers, w.Namespace, w.Name), "object", object)
		}
	}
	return nil
}
