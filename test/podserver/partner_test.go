// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package podserver

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// member is a ready pod of group 0 of a role, whose groups have two pods.
func member(role, revision, index string) *corev1.Pod {
	workload := "llm-" + revision + "-" + role
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: workload + "-0-" + index, Annotations: map[string]string{lws.SizeAnnotationKey: "2"},
			Labels: map[string]string{
				lws.SetNameLabelKey: workload, lws.GroupIndexLabelKey: "0", lws.WorkerIndexLabelKey: index,
				disaggregated.SetNameLabelKey: "llm", disaggregated.RoleLabelKey: role, disaggregated.RevisionLabelKey: revision,
			},
		},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
}

// A partner is a leader of the role, at the same revision, whose whole group is ready.
func TestPartner(t *testing.T) {
	t.Parallel()
	caller, other, alone := member("prefill", "a", "0"), member("prefill", "b", "0"), member("prefill", "c", "0")
	pods, err := watchPods(t.Context(), fake.NewClientset(caller, other, alone,
		member("decode", "a", "0"), member("decode", "a", "1"), member("decode", "b", "0"), member("decode", "b", "1"), member("decode", "c", "0")))
	require.NoError(t, err)
	for range 20 {
		for _, pod := range []*corev1.Pod{caller, other} {
			want := member("decode", pod.Labels[disaggregated.RevisionLabelKey], "0").Name
			got := pods.partner(pod, "decode")
			require.True(t, got != nil && got.Name == want, "%s calls %v, want %s", pod.Name, got, want)
		}
	}
	if got := pods.partner(alone, "decode"); got != nil {
		t.Errorf("%s calls %s, whose group lacks a pod", alone.Name, got.Name)
	}
}
