// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package disruption

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// Workload is the part of a LeaderWorkerSet that matters to budgets.
type Workload struct {
	Namespace, Name string
	Template        lws.LeaderWorkerTemplate
	// Revision is what its groups run.
	Revision string
	// Groups of Size pods, of which MaxUnavailable may be unavailable at once.
	Groups, Size, MaxUnavailable int
}

// Codes of problems of a budget.
const (
	// Blocks: the budget allows no pod of the workload to be evicted.
	Blocks = "BudgetBlocksEviction"
	// CountsPods: the budget allows more groups to be disrupted at once than the workload does.
	CountsPods = "BudgetCountsPods"
)

// Judge returns the problem of a budget for the workload: a code, and a message that says what is wrong. Both are empty if the budget is right.
//
// A budget of one pod over all pods is right: the first eviction disrupts its group, and no other is allowed until that is
// complete again.
func (w Workload) Judge(b *policyv1.PodDisruptionBudget) (code, message string) {
	leaders, workers := w.Caught(b)
	if leaders+workers == 0 {
		return "", ""
	}
	allowed, known := allows(b, leaders+workers)
	switch {
	case !known:
	case allowed <= 0:
		return Blocks, fmt.Sprintf("%s allows none of the %d pods of %s/%s that it selects to be evicted", spec(b), leaders+workers, w.Namespace, w.Name)
	// A budget over leaders alone counts groups, so any number is the user's choice.
	case w.Size > 1 && workers > 0 && min(allowed, w.Groups) > w.MaxUnavailable:
		return CountsPods, fmt.Sprintf("%s counts pods, and evicting one disrupts its whole group of %d: it allows %d evictions "+
			"at once, so up to %d groups of %s/%s, whose own maxUnavailable is %d",
			spec(b), w.Size, allowed, min(allowed, w.Groups), w.Namespace, w.Name, w.MaxUnavailable)
	}
	return "", ""
}

// Caught returns how many of the workload's pods the budget selects.
func (w Workload) Caught(b *policyv1.PodDisruptionBudget) (leaders, workers int) {
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil || b.Namespace != w.Namespace {
		return 0, 0 // the API server would have refused it
	}
	return w.Selected(selector)
}

// maxAlike is how many groups, and how many workers of a group, are compared with a selector of single ones: replicas and size may be
// any number.
const maxAlike = 256

// Selected returns how many of the workload's pods a selector selects. Pods that differ only in labels that the selector does not use
// count alike. For one that selects single groups or workers the numbers are exact below maxAlike, and at most too low above.
func (w Workload) Selected(selector labels.Selector) (leaders, workers int) {
	groups, perGroup := w.Groups, 1
	used := func(keys ...string) bool {
		requirements, _ := selector.Requirements()
		return slices.ContainsFunc(requirements, func(r labels.Requirement) bool { return slices.Contains(keys, r.Key()) })
	}
	if !used(lws.GroupIndexLabelKey, appsv1.StatefulSetPodNameLabel, appsv1.PodIndexLabel) {
		groups, perGroup = min(groups, 1), groups
	}
	alike, perWorker := w.Size-1, 1
	if !used(lws.WorkerIndexLabelKey, appsv1.StatefulSetPodNameLabel, appsv1.PodIndexLabel) {
		alike, perWorker = min(alike, 1), alike
	}
	for group := range min(groups, maxAlike) {
		if selector.Matches(w.labels(group, 0)) {
			leaders += perGroup
		}
		for worker := range min(alike, maxAlike) {
			if selector.Matches(w.labels(group, worker+1)) {
				workers += perGroup * perWorker
			}
		}
	}
	return leaders, workers
}

// labels returns the labels of a pod, as LWS and its StatefulSets set them, without the keys that are hashes.
func (w Workload) labels(group, index int) labels.Set {
	t := &w.Template.WorkerTemplate
	name, ordinal := fmt.Sprintf("%s-%d", w.Name, group), group
	if index > 0 {
		name, ordinal = fmt.Sprintf("%s-%d", name, index), index
	} else if w.Template.LeaderTemplate != nil {
		t = w.Template.LeaderTemplate
	}
	set := labels.Set{}
	maps.Copy(set, t.Labels)
	set[lws.SetNameLabelKey], set[lws.RevisionKey] = w.Name, w.Revision
	set[lws.GroupIndexLabelKey], set[lws.WorkerIndexLabelKey] = strconv.Itoa(group), strconv.Itoa(index)
	set[appsv1.StatefulSetPodNameLabel], set[appsv1.PodIndexLabel] = name, strconv.Itoa(ordinal)
	return set
}

// allows returns how many pods may be evicted at once when all are healthy. The budget may select pods of other workloads, too,
// which its status counts. known is false if it has neither minAvailable nor maxUnavailable.
func allows(b *policyv1.PodDisruptionBudget, caught int) (n int, known bool) {
	// A manifest has no status.
	pods := max(caught, int(b.Status.ExpectedPods))
	scaled := func(v *intstr.IntOrString) (int, bool) {
		// The disruption controller rounds both fields up.
		n, err := intstr.GetScaledValueFromIntOrPercent(v, pods, true)
		return n, err == nil
	}
	switch {
	case b.Spec.MaxUnavailable != nil:
		return scaled(b.Spec.MaxUnavailable)
	case b.Spec.MinAvailable != nil:
		n, known = scaled(b.Spec.MinAvailable)
		return pods - n, known
	}
	return 0, false
}

// spec returns the number in the budget's spec, as text.
func spec(b *policyv1.PodDisruptionBudget) string {
	if v := b.Spec.MaxUnavailable; v != nil {
		return "maxUnavailable " + v.String()
	}
	return "minAvailable " + b.Spec.MinAvailable.String()
}
