// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package disruption

import (
	"fmt"
	"maps"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// Workload is a LeaderWorkerSet, as far as budgets go.
type Workload struct {
	Namespace, Name string
	Template        lws.LeaderWorkerTemplate
	// Revision is what its groups run.
	Revision string
	// Groups of Size pods, of which MaxUnavailable may be away at once.
	Groups, Size, MaxUnavailable int
}

// Finding is something that people should know of a budget.
type Finding struct {
	// Code is machine-readable, Message says what, where and what to do.
	Code, Message string
}

// Codes of findings.
const (
	// Blocks: the budget allows no pod of the workload to be evicted.
	Blocks = "BudgetBlocksEviction"
	// CountsPods: the budget allows more groups to go at once than the workload does.
	CountsPods = "BudgetCountsPods"
)

// Judge returns what is wrong with a budget for the workload, if anything.
//
// A budget of one pod over all pods is right: the first eviction takes its group down, and no further one is allowed until
// that is whole again.
func (w Workload) Judge(b *policyv1.PodDisruptionBudget) []Finding {
	leaders, workers := w.Caught(b)
	if leaders+workers == 0 {
		return nil
	}
	allowed, known := allows(b, leaders+workers)
	name := fmt.Sprintf("PodDisruptionBudget %s/%s", b.Namespace, b.Name)
	switch {
	case !known:
		return nil
	case allowed <= 0:
		return []Finding{{Blocks, fmt.Sprintf("%s (%s) allows none of the %d pods of %s/%s that it selects to be evicted. The release itself asks "+
			"no budget, but nodes that these pods are on can't be drained: upgrades of nodes, and autoscalers that make room, wait "+
			"for ever. Let it allow one: maxUnavailable: 1", name, spec(b), leaders+workers, w.Namespace, w.Name)}}
	case w.Size > 1 && workers > 0 && min(allowed, w.Groups) > w.MaxUnavailable:
		return []Finding{{CountsPods, fmt.Sprintf("%s (%s) counts pods, and evicting one takes its whole group of %d down: it allows %d evictions "+
			"at once, so up to %d groups of %s/%s, whose own maxUnavailable is %d. Set maxUnavailable: 1, which comes to one group at a "+
			"time; or let one budget count leaders (%s: \"0\") with maxUnavailable: %d, and another one workers with maxUnavailable: 1",
			name, spec(b), w.Size, allowed, min(allowed, w.Groups), w.Namespace, w.Name, w.MaxUnavailable, lws.WorkerIndexLabelKey, w.MaxUnavailable)}}
	}
	return nil
}

// Caught is how many of the workload's pods the budget selects.
func (w Workload) Caught(b *policyv1.PodDisruptionBudget) (leaders, workers int) {
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil || b.Namespace != w.Namespace {
		return 0, 0 // the API server would not have taken it
	}
	return w.Selected(selector)
}

// Selected is how many of the workload's pods a selector selects.
func (w Workload) Selected(selector labels.Selector) (leaders, workers int) {
	for group := range w.Groups {
		for index := range w.Size {
			switch {
			case !selector.Matches(w.labels(group, index)):
			case index == 0:
				leaders++
			default:
				workers++
			}
		}
	}
	return leaders, workers
}

// labels are those of a pod, as LWS and its StatefulSets set them. Keys that are hashes are left out: nobody selects by them.
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

// allows is how many pods may be evicted at once when all are healthy. The budget may select pods of other workloads, too,
// which its status counts. Not known: it says neither of the two.
func allows(b *policyv1.PodDisruptionBudget, caught int) (n int, known bool) {
	pods := max(caught, int(b.Status.ExpectedPods))
	scaled := func(v *intstr.IntOrString) (int, bool) {
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

// spec is the number that the budget says.
func spec(b *policyv1.PodDisruptionBudget) string {
	if v := b.Spec.MaxUnavailable; v != nil {
		return "maxUnavailable " + v.String()
	}
	return "minAvailable " + b.Spec.MinAvailable.String()
}
