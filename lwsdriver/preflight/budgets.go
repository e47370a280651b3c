// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

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
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// A PodDisruptionBudget counts pods. The eviction of one disrupts its whole group: LWS recreates it, or it can't serve until the pod is
// ready again. So a budget for several pods may disrupt as many groups. These are the rules about budgets.
const (
	// BudgetBlocks: the budget allows no pod of the workload to be evicted.
	BudgetBlocks = "BudgetBlocksEviction"
	// BudgetCounts: the budget allows more groups to be disrupted at once than the workload does.
	BudgetCounts = "BudgetCountsPods"
)

var budgetRules = []Rule{
	{
		ID: BudgetBlocks, Severity: warning, Needs: Budgets,
		Title: "A PodDisruptionBudget allows no eviction",
		Why:   "Nodes with these pods cannot be drained: node upgrades, and autoscalers that make room for new groups, wait forever",
		Fix:   "Set maxUnavailable: 1",
		Check: func(s *Inventory, report func(Hit)) { judgeBudgets(s, BudgetBlocks, report) },
	},
	{
		ID: BudgetCounts, Severity: warning, Needs: Budgets,
		Title: "A PodDisruptionBudget counts pods where groups matter",
		Why:   "Evicting one pod restarts its whole group, so the budget allows more groups to be unavailable at once than the workload itself does",
		Fix: "Set maxUnavailable: 1, which comes to one group at a time; or let one budget select leaders (" + lws.WorkerIndexLabelKey + ": \"0\") and " +
			"another workers",
		Check: func(s *Inventory, report func(Hit)) { judgeBudgets(s, BudgetCounts, report) },
	},
}

// judgeBudgets reports what is found of one code about the user's budgets.
func judgeBudgets(s *Inventory, code string, report func(Hit)) {
	pods := s.Pods()
	for _, b := range s.Budgets {
		if found, message := pods.judge(b); found == code {
			report(Hit{Object: &pb.ObjectRef{Kind: "PodDisruptionBudget", Namespace: b.Namespace, Name: b.Name}, Field: "spec", Message: message})
		}
	}
}

// Pods are those of a LeaderWorkerSet or of a role, as selectors see them.
type Pods struct {
	Namespace, Name string
	Template        lws.LeaderWorkerTemplate
	// Revision is what its groups run.
	Revision string
	// Groups of Size pods, of which MaxUnavailable may be unavailable at once.
	Groups, Size, MaxUnavailable int
}

// Pods returns the pods of a LeaderWorkerSet or of a role.
func (s *Inventory) Pods() Pods {
	return Pods{
		Namespace: s.Workload.Namespace, Name: s.Workload.Name, Template: s.Workload.Spec.LeaderWorkerTemplate, Revision: s.Revision,
		Groups: s.replicas(), Size: int(ptr.Deref(s.Workload.Spec.LeaderWorkerTemplate.Size, 1)), MaxUnavailable: plan.Tolerated(s.Rolling, s.replicas()),
	}
}

// judge returns the problem of a budget for the workload: a code, and a message that says what is wrong. Both are empty if the budget is right.
//
// A budget of one pod over all pods is right: the first eviction disrupts its group, and no other is allowed until that is
// complete again.
func (w Pods) judge(b *policyv1.PodDisruptionBudget) (code, message string) {
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil || b.Namespace != w.Namespace {
		return "", "" // the API server would have refused it
	}
	leaders, workers := w.Selected(selector)
	if leaders+workers == 0 {
		return "", ""
	}
	allowed, known := allowedDisruptions(b, leaders+workers)
	switch {
	case !known:
	case allowed <= 0:
		return BudgetBlocks, fmt.Sprintf("%s allows none of the %d pods of %s/%s that it selects to be evicted", amountText(b), leaders+workers, w.Namespace, w.Name)
	// A budget over leaders alone counts groups, so any number is the user's choice.
	case w.Size > 1 && workers > 0 && min(allowed, w.Groups) > w.MaxUnavailable:
		return BudgetCounts, fmt.Sprintf("%s counts pods, and evicting one disrupts its whole group of %d: it allows %d evictions "+
			"at once, so up to %d groups of %s/%s, whose own maxUnavailable is %d",
			amountText(b), w.Size, allowed, min(allowed, w.Groups), w.Namespace, w.Name, w.MaxUnavailable)
	}
	return "", ""
}

// maxAlike is how many groups, and maxCompared how many workers of all groups, are compared with a selector of single ones: replicas and size
// may be any number, and so may the selectors of a namespace.
const maxAlike, maxCompared = 256, 4096

// Selected returns how many of the workload's pods a selector selects. Pods that differ only in labels that the selector does not use
// count alike. For one that selects single groups or workers the numbers are exact up to these bounds, and at most too low above.
func (w Pods) Selected(selector labels.Selector) (leaders, workers int) {
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
	groups = min(groups, maxAlike)
	alike = min(alike, maxCompared/max(groups, 1))
	for group := range groups {
		if selector.Matches(w.labels(group, 0)) {
			leaders += perGroup
		}
		for worker := range alike {
			if selector.Matches(w.labels(group, worker+1)) {
				workers += perGroup * perWorker
			}
		}
	}
	return leaders, workers
}

// labels returns the labels of a pod, as LWS and its StatefulSets set them, without the keys that are hashes.
func (w Pods) labels(group, index int) labels.Set {
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

// allowedDisruptions returns how many pods may be evicted at once when all are healthy. The budget may select pods of other workloads, too,
// which its status counts. known is false if it has neither minAvailable nor maxUnavailable.
func allowedDisruptions(b *policyv1.PodDisruptionBudget, caught int) (n int, known bool) {
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

// amountText returns the number in the budget's spec, as text.
func amountText(b *policyv1.PodDisruptionBudget) string {
	if v := b.Spec.MaxUnavailable; v != nil {
		return "maxUnavailable " + v.String()
	}
	return "minAvailable " + b.Spec.MinAvailable.String()
}
