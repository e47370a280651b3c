// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/capacity"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// previewTimeout bounds each question to the API server for which the start of a release waits.
const previewTimeout = 5 * time.Second

// preview says what a release that is about to begin costs at its peak, and refuses a second set of groups that a quota
// does not hold. It is asked once: what a running release needs is there, or on its way.
func (d *Driver) preview(ctx context.Context, s *observe.Snapshot, p *pb.ReleasePolicy) ([]*pb.Warning, error) {
	if plan.NothingWaits(s.Observation) {
		return fewReplicas(s, p.GetStyle()), nil
	}
	return d.costs(ctx, s, p)
}

// costs is preview for a release that has something to bring.
func (d *Driver) costs(ctx context.Context, s *observe.Snapshot, p *pb.ReleasePolicy) ([]*pb.Warning, error) {
	warnings := fewReplicas(s, p.GetStyle())
	budgets, err := d.judgeBudgets(ctx, s, p)
	if err != nil {
		return nil, err
	}
	warnings = append(warnings, budgets...)
	need, peak := peakOf(s, p)
	if need.Groups == 0 {
		return warnings, nil
	}
	warnings = append(warnings, &pb.Warning{Code: "ExtraCapacity", Message: peak})
	shortage, err := d.shortage(ctx, s, need)
	must := p.GetStyle() == pb.Style_STYLE_BLUE_GREEN && !p.GetBlueGreen().GetForce()
	switch {
	case err != nil && must:
		return nil, fmt.Errorf("read the ResourceQuotas of %s, which a second set of groups must fit (policy.blue_green.force begins without): %w",
			s.Key.Namespace, observe.ContractError(err))
	case err != nil:
		warnings = append(warnings, &pb.Warning{
			Code: "QuotaUnknown", Message: fmt.Sprintf("the ResourceQuotas of %s could not be read, so nobody knows whether they hold that: %v", s.Key.Namespace, err),
		})
	case shortage.text == "":
	case must:
		return nil, drivererr.WithMetadata(drivererr.New(pb.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED,
			"%s. That does not fit: %s. Raise the quota, free what uses it or scale %s down; release in STYLE_PARTITION, which needs nothing extra, or in "+
				"STYLE_CANARY, whose batches need less; or set policy.blue_green.force to begin all the same", peak, shortage.text, s.Key),
			"object", shortage.object)
	default:
		warnings = append(warnings, &pb.Warning{
			Code:    "QuotaExceeded",
			Message: "the release does not fit: " + shortage.text + ". Groups beyond that will not come until the quota is raised or something is freed",
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
	case style == pb.Style_STYLE_PARTITION:
		text = "%s has 1 group, and in place it is taken down to be replaced: nothing serves until it is ready again. Scale to 2 or " +
			"more, or release with STYLE_CANARY or STYLE_BLUE_GREEN, which start the new group beside it"
	default:
		text = "%s has 1 group, so every batch but an empty one is all of it: a second whole group beside it"
	}
	return []*pb.Warning{{Code: "FewReplicas", Message: fmt.Sprintf(text, s.Key)}}
}

// peakOf is what the release needs on top of what the workload has, when it needs most; in words, too.
func peakOf(s *observe.Snapshot, p *pb.ReleasePolicy) (capacity.Need, string) {
	policy, _ := record.ParsePolicy(p)
	peak := capacity.PeakOf(policy, plan.NewRecord(s.Observation).Saved, s.Stable.Replicas)
	what := "in its canary at the largest batch"
	if policy.Style == pb.Style_STYLE_BLUE_GREEN {
		what = "in the second set"
	}
	need := needOf(s, policy, peak)
	if need.Groups == 0 {
		return need, ""
	}
	text := fmt.Sprintf("the release needs up to %d groups (%d pods) on top of the %d groups of %s: %d %s",
		need.Groups, need.Pods(), s.Stable.Replicas, s.Key, peak.Added, what)
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
	return need
}

// shortage is what quotas lack.
type shortage struct {
	// text says it for people, empty if they lack nothing; object is the first of the quotas.
	text, object string
}

// shortage asks for the namespace's quotas. It is one request per release that adds groups: a cache would keep every
// quota of the cluster, and want the right to watch them, for a question that is asked some times a day.
func (d *Driver) shortage(ctx context.Context, s *observe.Snapshot, need capacity.Need) (shortage, error) {
	quotas, err := d.listQuotas(ctx, s.Key.Namespace)
	if err != nil {
		return shortage{}, err
	}
	var out shortage
	var parts []string
	for i := range quotas.Items {
		q := &quotas.Items[i]
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

func (d *Driver) listQuotas(ctx context.Context, namespace string) (*corev1.ResourceQuotaList, error) {
	ctx, cancel := context.WithTimeout(ctx, previewTimeout)
	defer cancel()
	list, err := d.core.CoreV1().ResourceQuotas(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list resourcequotas in %s: %w", namespace, err)
	}
	return list, nil
}

func quotaRef(q *corev1.ResourceQuota) string { return "ResourceQuota " + q.Namespace + "/" + q.Name }
