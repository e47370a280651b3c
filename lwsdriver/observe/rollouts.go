// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// rolloutLabels returns the rollout that a pod's labels name.
func rolloutLabels(labels map[string]string) plan.RolloutLabels {
	id, batch := labels[record.RolloutIDLabel], labels[record.RolloutBatchLabel]
	if id == "" && batch == "" {
		return plan.RolloutLabels{}
	}
	n, err := strconv.Atoi(batch)
	if err != nil || strconv.Itoa(n) != batch {
		n = -1 // no batch has this number, so the label is corrected
	}
	return plan.RolloutLabels{ID: intern(id), Batch: n}
}

// remainsAt reports whether the pod remains part of its group at the revision; others are about to be replaced.
func (v *Pod) remainsAt(revision string) bool { return !v.Terminating && v.Revision == revision }

// distinctLabels returns the distinct labels of a group's pods that stay at its revision, nil if none has any.
func distinctLabels(pods []*Pod, revision string) []plan.RolloutLabels {
	var all []plan.RolloutLabels
	bare := false
	for _, pod := range pods {
		if !pod.remainsAt(revision) {
			continue
		}
		switch labels := pod.Rollout; {
		case labels == plan.RolloutLabels{}:
			bare = true
		case !slices.Contains(all, labels):
			all = append(all, labels)
		}
	}
	// The zero value stands for pods without labels, beside which the others are not enough.
	if bare && all != nil {
		all = append(all, plan.RolloutLabels{})
	}
	slices.SortFunc(all, func(a, b plan.RolloutLabels) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), cmp.Compare(a.Batch, b.Batch))
	})
	return all
}

// UnlabelledPod returns the first pod of a group that lacks the labels, nil if all that stay have it.
func (g *Groups) UnlabelledPod(set types.NamespacedName, group string, t plan.LabelGroup) *Pod {
	return firstByName(g.podsOf(set, group), func(p *Pod) bool { return p.remainsAt(t.Revision) && p.Rollout != t.Labels })
}
