// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unique"

	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// markOf returns the rollout that a pod's labels name.
func markOf(labels map[string]string) (none unique.Handle[plan.RolloutMark]) {
	id, batch := labels[record.RolloutIDLabel], labels[record.RolloutBatchLabel]
	if id == "" && batch == "" {
		return none
	}
	n, err := strconv.Atoi(batch)
	if err != nil || strconv.Itoa(n) != batch {
		n = -1 // no batch has this number, so the label is corrected
	}
	return unique.Make(plan.RolloutMark{ID: id, Batch: n})
}

// Mark returns the rollout that the pod's labels name.
func (v *Pod) Mark() plan.RolloutMark {
	if v.labelled == (unique.Handle[plan.RolloutMark]{}) {
		return plan.RolloutMark{}
	}
	return v.labelled.Value()
}

// stays reports whether the pod remains part of its group at the revision; others are about to be replaced.
func (v *Pod) stays(revision string) bool { return !v.Terminating && v.Revision == revision }

// marksOf returns the distinct marks of a group's pods that stay at its revision, nil if none has any.
func marksOf(pods []*Pod, revision string) []plan.RolloutMark {
	var all []plan.RolloutMark
	bare := false
	for _, pod := range pods {
		if !pod.stays(revision) {
			continue
		}
		switch mark := pod.Mark(); {
		case mark == plan.RolloutMark{}:
			bare = true
		case !slices.Contains(all, mark):
			all = append(all, mark)
		}
	}
	if bare && all != nil {
		all = append(all, plan.RolloutMark{})
	}
	slices.SortFunc(all, func(a, b plan.RolloutMark) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), cmp.Compare(a.Batch, b.Batch))
	})
	return all
}

// UnmarkedPod returns the first pod of a group that lacks the mark, nil if all that stay have it.
func (g *Groups) UnmarkedPod(set types.NamespacedName, group string, t plan.LabelGroup) *Pod {
	return firstByName(g.podsOf(set, group), func(p *Pod) bool { return p.stays(t.Revision) && p.Mark() != t.Mark })
}
