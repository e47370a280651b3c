// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/capacity"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/preflight"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// preview returns what preflight finds nearby and warns of what a release needs at its peak, and refuses a second set of groups that exceeds a
// quota. It is called once, before the release begins: what a running release needs exists already or is being created.
func (d *Driver) preview(s *observe.Snapshot, p *pb.ReleasePolicy) ([]*pb.Finding, []*pb.Warning, error) {
	if plan.UpToDate(s.Observation) {
		return nil, smallWorkloadWarnings(s, p.GetStyle()), nil
	}
	return d.capacityFindings(s, p)
}

// capacityFindings is preview for a release that has a new template. What is found about quotas and budgets is among the warnings.
func (d *Driver) capacityFindings(s *observe.Snapshot, p *pb.ReleasePolicy) (found []*pb.Finding, warnings []*pb.Warning, err error) {
	inventory, unread := d.nearby(s, p)
	warnings = smallWorkloadWarnings(s, p.GetStyle())
	if err := unread[preflight.Budgets]; err != nil {
		warnings = append(warnings, &pb.Warning{
			Code: "BudgetsUnknown", Message: fmt.Sprintf("the PodDisruptionBudgets of %s could not be read, so their effect on %s is unknown: %v",
				s.Key.Namespace, s.Key.Name, err),
		})
	}
	found = preflight.Check(inventory).GetFindings()
	of := func(rules ...string) []*pb.Finding {
		return slices.DeleteFunc(slices.Clone(found), func(f *pb.Finding) bool { return !slices.Contains(rules, f.GetRule()) })
	}
	warnings = append(warnings, preflight.Warnings(of(preflight.BudgetBlocks, preflight.BudgetCounts))...)
	if inventory.Need().Pods() == 0 {
		return found, warnings, nil
	}
	peak := peakOf(s, inventory)
	warnings = append(warnings, &pb.Warning{Code: "ExtraCapacity", Message: peak})
	// A second set must be complete before it can be promoted, so one that does not fit only uses the quota up.
	must := p.GetStyle() == pb.Style_STYLE_BLUE_GREEN && !p.GetBlueGreen().GetForce()
	short := of(preflight.QuotaExceeded)
	switch err := unread[preflight.Quotas]; {
	case err != nil && must:
		return nil, nil, fmt.Errorf("read the ResourceQuotas of %s, which a second set of groups must fit (policy.blue_green.force begins without): %w",
			s.Key.Namespace, observe.ContractError(err))
	case err != nil:
		warnings = append(warnings, &pb.Warning{
			Code: "QuotaUnknown", Message: fmt.Sprintf("the ResourceQuotas of %s could not be read, so whether the release fits them is unknown: %v", s.Key.Namespace, err),
		})
	case must && len(short) > 0:
		texts := make([]string, 0, len(short))
		for _, f := range short {
			texts = append(texts, preflight.Text(f.GetObject())+": "+f.GetMessage())
		}
		return nil, nil, drivererr.WithMetadata(drivererr.New(pb.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED,
			"%s. %s. Raise the quota, free what uses it or scale %s down; release in style partition, which needs nothing extra, or in "+
				"style canary, whose batches need less; or set policy.blue_green.force to begin anyway", peak, strings.Join(texts, "; "), s.Key),
			"object", preflight.Text(short[0].GetObject()))
	}
	return found, append(warnings, preflight.Warnings(short)...), nil
}

// smallWorkloadWarnings warns where a workload is too small to be released in steps.
func smallWorkloadWarnings(s *observe.Snapshot, style pb.Style) []*pb.Warning {
	text := ""
	switch {
	case s.Stable.Replicas > 1:
		return nil
	case s.Stable.Replicas == 0:
		text = "%s has no group, so there is nothing to release"
	case style == pb.Style_STYLE_PARTITION && s.Set == nil:
		text = "%s has 1 group, and in place it is deleted to be recreated: nothing serves until it is ready again. Scale to 2 or " +
			"more, or release in style canary or blue-green, which start the new group beside it"
	default:
		text = "%s has 1 group, so every batch but an empty one adds a second whole group beside it"
	}
	return []*pb.Warning{{Code: "FewReplicas", Message: fmt.Sprintf(text, s.Key)}}
}

// peakOf describes what the release needs at its peak on top of what the workload has.
func peakOf(s *observe.Snapshot, inventory *preflight.Inventory) string {
	need, peak := inventory.Need(), inventory.Peak()
	what := "in its canary at the largest batch"
	if inventory.Policy.Style == pb.Style_STYLE_BLUE_GREEN {
		what = "in the second set"
	}
	pods := plan.Counted(need.Pods(), "pod", "pods")
	text := fmt.Sprintf("the release needs up to %s (%s) on top of the %s of %s: %d %s",
		plan.Counted(need.Groups, "group", "groups"), pods, plan.Counted(s.Stable.Replicas, "group", "groups"), s.Key, peak.Added, what)
	if s.Set != nil {
		added, present := make([]string, 0, len(s.Roles)), make([]string, 0, len(s.Roles))
		for i, role := range s.Roles {
			added = append(added, plan.Counted(need.Parts()[i].Groups, "group", "groups")+" of "+role.Name)
			present = append(present, plan.Counted(role.Replicas*s.Slices, "group", "groups")+" of "+role.Name)
		}
		text = fmt.Sprintf("the release needs up to %s (%s) on top of the %s of %s",
			strings.Join(added, " and "), pods, strings.Join(present, " and "), observe.Object(s.Key))
	}
	if peak.Surge > 0 {
		text += fmt.Sprintf(", %d for its own maxSurge during promotion", peak.Surge)
	}
	if list := capacity.Text(need.Requests()); list != "" {
		text += ". They request " + list
	}
	return text
}
