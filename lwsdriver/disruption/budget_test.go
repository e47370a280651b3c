// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package disruption

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
)

// What is made is read as what was wanted, and selects leaders or workers of both workloads and nothing else.
func TestObject(t *testing.T) {
	stable := &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "vllm", UID: "u"}}
	canary := model()
	canary.Name = "vllm-b"
	other := model()
	other.Name = "vllm-c"
	for _, tt := range []struct {
		want             plan.Budget
		leaders, workers int
	}{
		{plan.Budget{Name: "vllm-lockstep-leaders", Workloads: []string{"vllm", "vllm-b"}, MaxUnavailable: 2}, 4, 0},
		{plan.Budget{Name: "vllm-lockstep-workers", Workers: true, Workloads: []string{"vllm", "vllm-b"}, MaxUnavailable: 1}, 0, 4},
	} {
		o := Object(stable, tt.want)
		if diff := cmp.Diff(tt.want, Read(o)); diff != "" {
			t.Errorf("read (-want +got):\n%s", diff)
		}
		if !Ours(o) || metav1.GetControllerOf(o).UID != "u" {
			t.Errorf("%s has no workload: %v, %v", o.Name, o.Labels, o.OwnerReferences)
		}
		for _, w := range []Workload{model(), canary} {
			if leaders, workers := w.Caught(o); leaders != tt.leaders || workers != tt.workers {
				t.Errorf("%s selects %d leaders and %d workers of %s", o.Name, leaders, workers, w.Name)
			}
		}
		if leaders, workers := other.Caught(o); leaders+workers > 0 {
			t.Errorf("%s selects pods of others", o.Name)
		}
		if found, _ := model().Judge(o); found != "" {
			t.Errorf("a budget of ours is found to be wrong: %v", found)
		}
	}
}

// An edited budget is read by name only, so that it is replaced.
func TestReadEdited(t *testing.T) {
	stable := &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "vllm", UID: "u"}}
	for name, edit := range map[string]func(*policyv1.PodDisruptionBudgetSpec){
		"label": func(s *policyv1.PodDisruptionBudgetSpec) { s.Selector.MatchLabels = map[string]string{"a": "b"} },
		"expression": func(s *policyv1.PodDisruptionBudgetSpec) {
			s.Selector.MatchExpressions = s.Selector.MatchExpressions[:1]
		},
		"selector": func(s *policyv1.PodDisruptionBudgetSpec) { s.Selector = nil },
		"least": func(s *policyv1.PodDisruptionBudgetSpec) {
			s.MaxUnavailable, s.MinAvailable = nil, ptr.To(intstr.FromInt(1))
		},
		"percent": func(s *policyv1.PodDisruptionBudgetSpec) { s.MaxUnavailable = ptr.To(intstr.FromString("1%")) },
		"policy":  func(s *policyv1.PodDisruptionBudgetSpec) { s.UnhealthyPodEvictionPolicy = nil },
	} {
		o := Object(stable, plan.Budget{Name: "b", Workloads: []string{"vllm"}, MaxUnavailable: 1})
		edit(&o.Spec)
		if got := Read(o); !cmp.Equal(got, plan.Budget{Name: "b"}) {
			t.Errorf("%s: read as %+v", name, got)
		}
	}
}
