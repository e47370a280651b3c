// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// budgeted is 4 groups of 2 pods, of which one may be away.
func budgeted() Pods {
	w := Pods{Namespace: "default", Name: "vllm", Revision: "r1", Groups: 4, Size: 2, MaxUnavailable: 1}
	w.Template.WorkerTemplate.Labels = map[string]string{"app": "vllm"}
	return w
}

// budget selects by labels; value is its maxUnavailable, or with a leading ">" its minAvailable.
func budget(value string, match map[string]string) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "b"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: match}},
	}
	if least, is := strings.CutPrefix(value, ">"); is {
		b.Spec.MinAvailable = ptr.To(intstr.Parse(least))
	} else if value != "" {
		b.Spec.MaxUnavailable = ptr.To(intstr.Parse(value))
	}
	return b
}

func TestBudgets(t *testing.T) {
	app, leaders := map[string]string{"app": "vllm"}, map[string]string{"app": "vllm", lws.WorkerIndexLabelKey: "0"}
	for _, tt := range []struct {
		name, reason string
		budget       *policyv1.PodDisruptionBudget
		change       func(*Pods)
		want         string
		says         []string
	}{
		{name: "none", reason: "0 is 0", budget: budget("0", app), want: BudgetBlocks, says: []string{"maxUnavailable 0", "8 pods"}},
		{name: "none in percent", reason: "0 % of 8", budget: budget("0%", app), want: BudgetBlocks},
		{name: "all", reason: "all must be there", budget: budget(">100%", app), want: BudgetBlocks},
		{name: "as many", reason: "minAvailable is all that there are", budget: budget(">8", app), want: BudgetBlocks, says: []string{"minAvailable 8"}},
		{name: "more", reason: "minAvailable is more than there are", budget: budget(">10", app), want: BudgetBlocks},
		{name: "leaders blocked", reason: "4 leaders", budget: budget(">4", leaders), want: BudgetBlocks, says: []string{"4 pods"}},
		{
			name: "others, too", reason: "minAvailable 8 of 16 pods, half of which are another workload's", want: BudgetCounts,
			budget: func() *policyv1.PodDisruptionBudget { b := budget(">8", app); b.Status.ExpectedPods = 16; return b }(),
		},
		{name: "one", reason: "one pod is one group at a time", budget: budget("1", app)},
		{name: "all but one", reason: "the same in other words", budget: budget(">7", app)},
		{name: "two", reason: "two pods are up to two groups", budget: budget("2", app), want: BudgetCounts, says: []string{"2 evictions", "2 groups", "maxUnavailable is 1"}},
		{name: "percent", reason: "a quarter of 8 pods", budget: budget("25%", app), want: BudgetCounts},
		{name: "allowed", reason: "two groups may be away anyway", budget: budget("2", app), change: func(w *Pods) { w.MaxUnavailable = 2 }},
		{name: "many", reason: "no more groups than there are", budget: budget("100%", app), change: func(w *Pods) { w.MaxUnavailable = 2 }, want: BudgetCounts, says: []string{"8 evictions", "4 groups"}},
		{name: "leaders", reason: "one count per group", budget: budget("2", leaders)},
		{name: "size 1", reason: "a pod is a group", budget: budget("2", app), change: func(w *Pods) { w.Size = 1 }},
		{name: "other pods", reason: "no concern", budget: budget("0", map[string]string{"app": "web"})},
		{name: "everything", reason: "an empty selector selects all", budget: budget("0", nil), want: BudgetBlocks},
		{name: "nothing", reason: "no selector selects none", budget: func() *policyv1.PodDisruptionBudget { b := budget("0", nil); b.Spec.Selector = nil; return b }()},
		{name: "by set", reason: "LWS's own label", budget: budget("0", map[string]string{lws.SetNameLabelKey: "vllm"}), want: BudgetBlocks},
		{name: "by group", reason: "one group of 2", budget: budget("0", map[string]string{lws.GroupIndexLabelKey: "3"}), want: BudgetBlocks, says: []string{"2 pods"}},
		{name: "by pod", reason: "a StatefulSet's label", budget: budget("0", map[string]string{"statefulset.kubernetes.io/pod-name": "vllm-1-1"}), want: BudgetBlocks, says: []string{"1 pods"}},
		{name: "by revision", reason: "what the groups run", budget: budget("0", map[string]string{lws.RevisionKey: "r1"}), want: BudgetBlocks},
		{name: "other namespace", reason: "none of its pods", budget: func() *policyv1.PodDisruptionBudget { b := budget("0", app); b.Namespace = "x"; return b }()},
		{name: "no number", reason: "nothing is known", budget: budget("", app)},
		{
			name: "leader template", reason: "leaders have labels of their own", budget: budget("0", map[string]string{"part": "leader"}), want: BudgetBlocks, says: []string{"4 pods"},
			change: func(w *Pods) {
				w.Template.LeaderTemplate = &corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"part": "leader"}}}
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := budgeted()
			if tt.change != nil {
				tt.change(&w)
			}
			code, text := w.judge(tt.budget)
			assert.Equal(t, tt.want, code, "%s: %q (%s), want %q", tt.reason, code, text, tt.want)
			for _, word := range tt.says {
				assert.Contains(t, text, word)
			}
		})
	}
}

// Replicas and size may be any number, and a namespace may have many Services and budgets of single pods.
func TestSelectedComparesBoundedPods(t *testing.T) {
	w := budgeted()
	w.Size = 1000
	for _, groups := range []int{1, 100, 1_000_000} {
		w.Groups = groups
		selector := labels.SelectorFromSet(labels.Set{appsv1.PodIndexLabel: "0"})
		if n := testing.AllocsPerRun(1, func() { w.Selected(selector) }); n > 20*maxCompared {
			t.Errorf("one selector is compared with %d groups in %.0f allocations", groups, n)
		}
	}
}

// TestLasts: a hook takes as long as its sleeps, if each of them runs once.
func TestLasts(t *testing.T) {
	for _, tt := range []struct {
		command string
		want    time.Duration
		known   bool
	}{
		{"sleep 10", 10 * time.Second, true},
		{"sleep 2m; sleep 5s", 125 * time.Second, true},
		{"sleep 0.5 && sleep 7.5", 8 * time.Second, true},
		{"/bin/drain --sleep 10", 10 * time.Second, true},
		{"/bin/drain", 0, false},
		{"sleep $WAIT", 0, false},
		{"sleep infinity", 0, false},
		{"while curl -sf localhost:8000/busy; do sleep 1; done", 0, false},
		{"until curl -sf localhost:8000/idle; do sleep 1; done", 0, false},
		{"for i in 1 2 3; do sleep 1; done", 0, false},
	} {
		h := &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", tt.command}}}
		got, known := hookDuration(h)
		assert.True(t, got == tt.want && known == tt.known, "%q: %s, %t; want %s, %t", tt.command, got, known, tt.want, tt.known)
	}
}
