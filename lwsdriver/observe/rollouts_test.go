// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

func rollout(id, batch string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Labels[record.RolloutIDLabel], p.Labels[record.RolloutBatchLabel] = id, batch
	}
}

func terminating(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: lwstest.Noon} }

func at(revision string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[lws.RevisionKey] = revision }
}

func TestGroupMarks(t *testing.T) {
	labels := func(id string, batch int) plan.RolloutLabels { return plan.RolloutLabels{ID: id, Batch: batch} }
	for _, tt := range []struct {
		name, reason string
		pods         []*corev1.Pod
		want         []plan.RolloutLabels
	}{
		{"none", "", []*corev1.Pod{lwstest.Pod("vllm-1"), lwstest.Pod("vllm-1-1")}, nil},
		{"all", "", []*corev1.Pod{lwstest.Pod("vllm-1", rollout("k", "2")), lwstest.Pod("vllm-1-1", rollout("k", "2"))}, []plan.RolloutLabels{labels("k", 2)}},
		{"some", "", []*corev1.Pod{lwstest.Pod("vllm-1", rollout("k", "2")), lwstest.Pod("vllm-1-1")}, []plan.RolloutLabels{{}, labels("k", 2)}},
		{
			"different", "", []*corev1.Pod{lwstest.Pod("vllm-1", rollout("k", "2")), lwstest.Pod("vllm-1-1", rollout("j", "2"))},
			[]plan.RolloutLabels{labels("j", 2), labels("k", 2)},
		},
		{"no number", "a user's own value", []*corev1.Pod{lwstest.Pod("vllm-1", rollout("k", "two"))}, []plan.RolloutLabels{labels("k", -1)}},
		{"no plain number", "it must be as we write it", []*corev1.Pod{lwstest.Pod("vllm-1", rollout("k", "02"))}, []plan.RolloutLabels{labels("k", -1)}},
		{
			"terminating", "a pod that is being deleted does not count", []*corev1.Pod{lwstest.Pod("vllm-1", rollout("k", "2")), lwstest.Pod("vllm-1-1", terminating)},
			[]plan.RolloutLabels{labels("k", 2)},
		},
		{
			"left over", "nor has a worker of the group before", []*corev1.Pod{lwstest.Pod("vllm-1", rollout("k", "2")), lwstest.Pod("vllm-1-1", at("r0"))},
			[]plan.RolloutLabels{labels("k", 2)},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newGroupFixture(t)
			for _, p := range tt.pods {
				b.put(p)
			}
			assert.Empty(t, cmp.Diff(tt.want, b.wanted(2, 9, nil, lwstest.Noon, 0)[1].Rollouts), "%s (-want +got)", tt.reason)
		})
	}
}
