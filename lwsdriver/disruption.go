// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/disruption"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// judgeBudgets warns of PodDisruptionBudgets that do not do what people expect of them for groups. Like quotas they are
// asked for once per release, and not watched. It never stands in the way of a release.
func (d *Driver) judgeBudgets(ctx context.Context, s *seen) []*pb.Warning {
	ctx, cancel := context.WithTimeout(ctx, previewTimeout)
	defer cancel()
	budgets, err := d.core.PolicyV1().PodDisruptionBudgets(s.key.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return []*pb.Warning{{
			Code: "BudgetsUnknown", Message: fmt.Sprintf("the PodDisruptionBudgets of %s could not be read, so nobody knows what they mean for %s: %v",
				s.key.Namespace, s.key.Name, err),
		}}
	}
	var warnings []*pb.Warning
	w := disruptable(s)
	for i := range budgets.Items {
		for _, f := range w.Judge(&budgets.Items[i]) {
			warnings = append(warnings, &pb.Warning{Code: f.Code, Message: f.Message})
		}
	}
	return warnings
}

// disruptable is the user's workload as budgets see it.
func disruptable(s *seen) disruption.Workload {
	w := disruption.Workload{
		Namespace: s.key.Namespace, Name: s.key.Name, Template: s.stable.Spec.LeaderWorkerTemplate,
		Groups: s.Stable.Replicas, Size: s.Stable.Size,
		MaxUnavailable: plan.Tolerated(adopted(s).Saved, s.Stable.Replicas),
	}
	if now := s.StableRevisions(); len(now) > 0 {
		w.Revision = now[0]
	}
	return w
}
