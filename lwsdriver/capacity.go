// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/capacity"
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
	shortage, err := d.shortage(s, need)
	must := p.GetStyle() == pb.Style_STYLE_BLUE_GREEN && !p.GetBlueGreen().GetForce()
	switch {
	case err != nil && must:
		return nil, fmt.Errorf("read the ResourceQuotas of %s, which a second set of groups must fit (policy.blue_green.force begins without): %w",
			s.Key.Namespace, observe.ContractError(err))
	case err != nil:
		warnings = append(warnings, &pb.Warning{
			Code: "QuotaUnknown", Message: fmt.Sprintf("the ResourceQuotas of %s could not be read, so whether the release fits them is unknown: %v", s.Key.Namespace, err),
		})
	case shortage.text == "":
	case must:
		return nil, drivererr.WithMetadata(drivererr.New(pb.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED,
			"%s. That does not fit: %s. Raise the quota, free what uses it or scale %s down; release in STYLE_PARTITION, which needs nothing extra, or in "+
				"STYLE_CANARY, whose batches need less; or set policy.blue_green.force to begin anyway", peak, shortage.text, s.Key),
			"object", shortage.object)
	default:
		warnings = append(warnings, &pb.Warning{
			Code:    "QuotaExceeded",
			Message: "the release does not fit: " + shortage.text + ". Groups beyond that are not created until the quota is raised or usage is freed",
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
	policy, _ := record.ParsePolicy(p)
	peak := capacity.PeakOf(policy, plan.NewRecord(s.Observation).Saved, s.Stable.Replicas)
	what := "in its canary at the largest batch"
	if policy.Style == pb.Style_STYLE_BLUE_GREEN {
		what = "in the second set"
	}
	need := needOf(s, policy, peak)
	if need.Pods() == 0 {
		return need, ""
	}
	text := fmt.Sprintf("the release needs up to %d groups (%d pods) on top of the %d groups of %s: %d %s",
		need.Groups, need.Pods(), s.Stable.Replicas, s.Key, peak.Added, what)
	if s.Set != nil {
		text = fmt.Sprintf("the release needs up to %s (%d pods) on top of the %s of %s", roleGroups(s, rolePeak(s, policy, peak)), need.Pods(),
			roleGroups(s, func(r plan.Role) int { return r.Replicas * s.Slices }), observe.Object(s.Key))
	}
	if peak.Surge > 0 {
		text += fmt.Sprintf(", %d for its own maxSurge during promotion", peak.Surge)
	}
	if list := capacity.Text(need.Requests()); list != "" {
		text += ". They request " + list
	}
	return need, text
}

func needOf(s *observe.Snapshot, policy record.Policy, peak capacity.Peak) capacity.Need {
	need := capacity.Need{
		Template: observe.CanaryTemplate(s.StableObject, policy), Network: s.StableObject.Spec.NetworkConfig, Groups: peak.Groups(), Sets: 1,
	}
	if policy.Traffic != nil {
		need.Services = 1
	}
	if s.Set != nil {
		peakOf := rolePeak(s, policy, peak)
		need.Groups = peakOf(s.Roles[0])
		for _, role := range s.Roles[1:] {
			spec := s.Set.Spec(role.Name)
			need.Others = append(need.Others, capacity.Need{
				Template: spec.LeaderWorkerTemplate, Network: spec.NetworkConfig, Groups: peakOf(role), Sets: 1,
			})
		}
	}
	return need
}

// rolePeak returns how many groups a role of a DisaggregatedSet has in addition at the peak.
func rolePeak(s *observe.Snapshot, policy record.Policy, peak capacity.Peak) func(plan.Role) int {
	return func(r plan.Role) int { return plan.PeakOf(s.Observation, policy.Style, r, peak.Groups()) }
}

// roleGroups returns the groups of each role, as text.
func roleGroups(s *observe.Snapshot, groups func(plan.Role) int) string {
	all := make([]string, 0, len(s.Roles))
	for _, role := range s.Roles {
		all = append(all, fmt.Sprintf("%d groups of %s", groups(role), role.Name))
	}
	return strings.Join(all, " and ")
}

// shortage is what quotas lack.
type shortage struct {
	// text is empty if the quotas lack nothing; object is the first quota that does.
	text, object string
}

// shortage compares a need with the namespace's quotas.
func (d *Driver) shortage(s *observe.Snapshot, need capacity.Need) (shortage, error) {
	quotas, err := d.engine.Observer.Nearby.Quotas(s.Key.Namespace)
	if err != nil {
		return shortage{}, err
	}
	var out shortage
	var parts []string
	for _, q := range quotas {
		for _, short := range need.Shortages(q) {
			parts = append(parts, fmt.Sprintf("in ResourceQuota %s %s", q.Name, short))
			if out.object == "" {
				out.object = quotaRef(q)
			}
		}
	}
	out.text = strings.Join(parts, "; ")
	return out, nil
}

func quotaRef(q *corev1.ResourceQuota) string { return "ResourceQuota " + q.Namespace + "/" + q.Name }
