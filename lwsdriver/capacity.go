// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"cmp"
	"fmt"
	"strings"

	policyv1 "k8s.io/api/policy/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/capacity"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/disruption"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// preview warns of what a release needs at its peak, and refuses a second set of groups that exceeds a quota. It is called
// once, before the release begins: what a running release needs exists already or is being created.
func (d *Driver) preview(s *observe.Snapshot, p *pb.ReleasePolicy) ([]*pb.Warning, error) {
	if plan.UpToDate(s.Observation) {
		return fewReplicas(s, p.GetStyle()), nil
	}
	return d.costs(s, p)
}

// costs is preview for a release that has a new template.
func (d *Driver) costs(s *observe.Snapshot, p *pb.ReleasePolicy) ([]*pb.Warning, error) {
	warnings := fewReplicas(s, p.GetStyle())
	budgets, err := d.judgeBudgets(s, p)
	if err != nil {
		return nil, err
	}
	warnings = append(warnings, budgets...)
	need, peak := peakOf(s, p)
	if need.Pods() == 0 {
		return warnings, nil
	}
	warnings = append(warnings, &pb.Warning{Code: "ExtraCapacity", Message: peak})
	// A second set must be complete before it can be promoted, so one that does not fit only uses the quota up.
	short, quota, err := d.shortage(s, need)
	must := p.GetStyle() == pb.Style_STYLE_BLUE_GREEN && !p.GetBlueGreen().GetForce()
	switch {
	case err != nil && must:
		return nil, fmt.Errorf("read the ResourceQuotas of %s, which a second set of groups must fit (policy.blue_green.force begins without): %w",
			s.Key.Namespace, observe.ContractError(err))
	case err != nil:
		warnings = append(warnings, &pb.Warning{
			Code: "QuotaUnknown", Message: fmt.Sprintf("the ResourceQuotas of %s could not be read, so whether the release fits them is unknown: %v", s.Key.Namespace, err),
		})
	case short == "":
	case must:
		return nil, drivererr.WithMetadata(drivererr.New(pb.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED,
			"%s. That does not fit: %s. Raise the quota, free what uses it or scale %s down; release in STYLE_PARTITION, which needs nothing extra, or in "+
				"STYLE_CANARY, whose batches need less; or set policy.blue_green.force to begin anyway", peak, short, s.Key),
			"object", quota)
	default:
		warnings = append(warnings, &pb.Warning{
			Code:    "QuotaExceeded",
			Message: "the release does not fit: " + short + ". Groups beyond that are not created until the quota is raised or usage is freed",
		})
	}
	return warnings, nil
}

// fewReplicas warns where a workload is too small to be released in steps.
func fewReplicas(s *observe.Snapshot, style pb.Style) []*pb.Warning {
	text := ""
	switch {
	case s.Stable.Replicas > 1:
		return nil
	case s.Stable.Replicas == 0:
		text = "%s has no group, so there is nothing to release"
	case style == pb.Style_STYLE_PARTITION && s.Set == nil:
		text = "%s has 1 group, and in place it is deleted to be recreated: nothing serves until it is ready again. Scale to 2 or " +
			"more, or release with STYLE_CANARY or STYLE_BLUE_GREEN, which start the new group beside it"
	default:
		text = "%s has 1 group, so every batch but an empty one adds a second whole group beside it"
	}
	return []*pb.Warning{{Code: "FewReplicas", Message: fmt.Sprintf(text, s.Key)}}
}

// peakOf returns what the release needs at its peak on top of what the workload has, also as text.
func peakOf(s *observe.Snapshot, p *pb.ReleasePolicy) (capacity.Need, string) {
	inventory := preflightOf(s, p)
	need, peak := inventory.Need(), inventory.Peak()
	if need.Pods() == 0 {
		return need, ""
	}
	what := "in its canary at the largest batch"
	if p.GetStyle() == pb.Style_STYLE_BLUE_GREEN {
		what = "in the second set"
	}
	more := "1 group"
	if need.Groups != 1 {
		more = fmt.Sprintf("%d groups", need.Groups)
	}
	text := fmt.Sprintf("the release needs up to %s (%d pods) on top of the %d groups of %s: %d %s",
		more, need.Pods(), s.Stable.Replicas, s.Key, peak.Added, what)
	if s.Set != nil {
		added, present := make([]string, 0, len(s.Roles)), make([]string, 0, len(s.Roles))
		for i, role := range s.Roles {
			added = append(added, fmt.Sprintf("%d groups of %s", need.Parts()[i].Groups, role.Name))
			present = append(present, fmt.Sprintf("%d groups of %s", role.Replicas*s.Slices, role.Name))
		}
		text = fmt.Sprintf("the release needs up to %s (%d pods) on top of the %s of %s",
			strings.Join(added, " and "), need.Pods(), strings.Join(present, " and "), observe.Object(s.Key))
	}
	if peak.Surge > 0 {
		text += fmt.Sprintf(", %d for its own maxSurge during promotion", peak.Surge)
	}
	if list := capacity.Text(need.Requests()); list != "" {
		text += ". They request " + list
	}
	return need, text
}

// shortage returns what the namespace's quotas lack for a need, empty if nothing, and the first quota that lacks something.
func (d *Driver) shortage(s *observe.Snapshot, need capacity.Need) (text, object string, err error) {
	quotas, err := d.engine.Observer.Nearby.Quotas(s.Key.Namespace)
	if err != nil {
		return "", "", err
	}
	var parts []string
	for _, q := range quotas {
		for _, short := range need.Shortages(q) {
			parts = append(parts, fmt.Sprintf("in ResourceQuota %s %s", q.Name, short))
			object = cmp.Or(object, "ResourceQuota "+q.Namespace+"/"+q.Name)
		}
	}
	return strings.Join(parts, "; "), object, nil
}

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
	// The budget may select labels that only the canary's leaders have.
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
