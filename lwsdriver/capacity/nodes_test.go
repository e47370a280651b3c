// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// nodeOf is a ready node; labels and taints are added by changes.
func nodeOf(name, gpus string, changes ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}},
		Status: corev1.NodeStatus{
			Allocatable: res("nvidia.com/gpu", gpus, "cpu", "64", "pods", "10"),
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, change := range changes {
		change(n)
	}
	return n
}

func in(rack string) func(*corev1.Node) { return func(n *corev1.Node) { n.Labels["rack"] = rack } }

func on(node, gpus string) *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{requesting("nvidia.com/gpu", gpus)}}}
}

func TestPlace(t *testing.T) {
	gpus := func(n string) corev1.PodSpec {
		return corev1.PodSpec{Containers: []corev1.Container{limited("nvidia.com/gpu", n, "cpu", "1")}}
	}
	pinned := gpus("8")
	pinned.NodeSelector = map[string]string{"rack": "a"}
	tolerant := gpus("8")
	tolerant.Tolerations = []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}}
	small := need(2, 2, gpus("8"))
	small.Template.LeaderTemplate = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{requesting("cpu", "1")}}}
	tainted := func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
	}
	full := on("n1", "8")
	done := on("n1", "8")
	done.Status.Phase = corev1.PodSucceeded
	grouped := on("a1", "0")
	grouped.Labels = map[string]string{lws.GroupUniqueHashLabelKey: "x"}
	elsewhere := grouped.DeepCopy()
	elsewhere.Namespace = "other"
	for _, tt := range []struct {
		name, reason string
		need         Need
		exclusive    string
		nodes        []*corev1.Node
		pods         []*corev1.Pod
		placed       int
		short        string
	}{
		{"room", "each pod a node", need(1, 2, gpus("8")), "", []*corev1.Node{nodeOf("n1", "8"), nodeOf("n2", "8")}, nil, 1, "[]"},
		{"full", "what runs there counts", need(1, 2, gpus("8")), "", []*corev1.Node{nodeOf("n1", "8"), nodeOf("n2", "8")}, []*corev1.Pod{full}, 0, "[nvidia.com/gpu]"},
		{"ended pods", "they take nothing", need(1, 2, gpus("8")), "", []*corev1.Node{nodeOf("n1", "8"), nodeOf("n2", "8")}, []*corev1.Pod{done}, 1, "[]"},
		{"incomplete group", "does not count", need(2, 2, gpus("8")), "", []*corev1.Node{nodeOf("n1", "8")}, nil, 0, "[nvidia.com/gpu]"},
		{"some", "one of two groups", need(2, 2, gpus("8")), "", []*corev1.Node{nodeOf("n1", "16"), nodeOf("n2", "8")}, nil, 1, "[nvidia.com/gpu]"},
		{"not in sum", "16 GPUs are free, and no node has 8", need(1, 1, gpus("8")), "", []*corev1.Node{nodeOf("n1", "4"), nodeOf("n2", "4"), nodeOf("n3", "4"), nodeOf("n4", "4")}, nil, 0, "[nvidia.com/gpu]"},
		{"pods", "a node takes so many", need(1, 11, corev1.PodSpec{Containers: []corev1.Container{{}}}), "", []*corev1.Node{nodeOf("n1", "0")}, nil, 0, "[pods]"},
		{"leaders", "do not waste a GPU node where there is another", small, "", []*corev1.Node{nodeOf("n1", "8"), nodeOf("n2", "8"), nodeOf("cpu", "0")}, nil, 2, "[]"},
		{"selector", "another rack does not count", need(1, 1, pinned), "", []*corev1.Node{nodeOf("n1", "8", in("b"))}, nil, 0, "[cpu nvidia.com/gpu pods]"},
		{"taint", "it keeps pods out", need(1, 1, gpus("8")), "", []*corev1.Node{nodeOf("n1", "8", tainted)}, nil, 0, "[cpu nvidia.com/gpu pods]"},
		{"toleration", "it lets them in", need(1, 1, tolerant), "", []*corev1.Node{nodeOf("n1", "8", tainted)}, nil, 1, "[]"},
		{"cordoned", "it takes no pods", need(1, 1, gpus("8")), "", []*corev1.Node{nodeOf("n1", "8", func(n *corev1.Node) { n.Spec.Unschedulable = true })}, nil, 0, "[cpu nvidia.com/gpu pods]"},
		{"not ready", "nor does this", need(1, 1, gpus("8")), "", []*corev1.Node{nodeOf("n1", "8", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse })}, nil, 0, "[cpu nvidia.com/gpu pods]"},
		{"exclusive", "a rack each, and b is free", need(2, 2, gpus("1")), "rack", []*corev1.Node{nodeOf("a1", "8", in("a")), nodeOf("b1", "8", in("b"))}, nil, 2, "[]"},
		{"exclusive, taken", "another group has rack a", need(2, 2, gpus("1")), "rack", []*corev1.Node{nodeOf("a1", "8", in("a")), nodeOf("b1", "8", in("b"))}, []*corev1.Pod{grouped}, 1, "[]"},
		{"exclusive, elsewhere", "a group of another namespace has rack a", need(2, 2, gpus("1")), "rack", []*corev1.Node{nodeOf("a1", "8", in("a")), nodeOf("b1", "8", in("b"))}, []*corev1.Pod{elsewhere}, 2, "[]"},
		{"roles", "one role takes what the other needs", roles(need(1, 1, gpus("8")), need(2, 1, gpus("4"))), "", []*corev1.Node{nodeOf("n1", "8"), nodeOf("n2", "4")}, nil, 2, "[nvidia.com/gpu]"},
		{"exclusive roles", "each group of each role has a rack", roles(need(1, 1, gpus("1")), need(2, 1, gpus("1"))), "rack", []*corev1.Node{nodeOf("a1", "8", in("a")), nodeOf("b1", "8", in("b"))}, nil, 2, "[]"},
		{"exclusive roles, one larger", "the small role fits the rack that the large one did not", roles(need(1, 2, gpus("8")), need(1, 1, gpus("8"))), "rack", []*corev1.Node{nodeOf("a1", "8", in("a")), nodeOf("b1", "8", in("b")), nodeOf("b2", "8", in("b"))}, nil, 2, "[]"},
		{"exclusive, too small", "no rack holds the whole group", need(1, 2, gpus("8")), "rack", []*corev1.Node{nodeOf("a1", "8", in("a")), nodeOf("b1", "8", in("b"))}, nil, 0, "[nvidia.com/gpu]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			room := FreeOf(tt.nodes, tt.pods)
			tt.need.Exclusive = tt.exclusive
			for i := range tt.need.Others {
				tt.need.Others[i].Exclusive = tt.exclusive
			}
			room.Place(tt.need) // takes nothing for good
			got := room.Place(tt.need)
			assert.True(t, got.Placed == tt.placed && fmt.Sprint(got.Short) == tt.short,
				"%s: %d groups, short of %v; want %d, %s", tt.reason, got.Placed, got.Short, tt.placed, tt.short)
		})
	}
}

// roles returns what all roles of a DisaggregatedSet need.
func roles(entry Need, others ...Need) Need {
	entry.Others = others
	return entry
}
