// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/plugin/informer"
	"github.com/lockstep-rollouts/lockstep/plugin/informer/guard"
)

// A pod for which the informer's transform panics makes its group unready, and the other pods are stored.
func TestPoisonousPod(t *testing.T) {
	b := newFixture(t, lwstest.Unrecorded())
	require.NoError(t, b.Caches.Pods.SetTransform(guard.Transform(informer.Transform(func(p *corev1.Pod) *Pod {
		if p.Name == "vllm-1" {
			panic("a defect")
		}
		return NewPod(p)
	}), unreadablePod)))
	b.runSynced()
	for _, name := range []string{"vllm-0", "vllm-1"} {
		pod := lwstest.Pod(name, func(p *corev1.Pod) { p.Labels[lws.GroupIndexLabelKey] = strings.TrimPrefix(name, "vllm-") })
		_, err := b.Core.CoreV1().Pods(lwstest.VLLM.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	var s *Snapshot
	// Their events come after the pods are in the cache.
	b.eventually("both groups are observed", func() bool { s = b.look(); return len(s.Stable.Groups) == 2 })
	g := s.Stable.Groups[1]
	assert.True(t, !g.Ready && g.Reason == "Unreadable" && g.Pod == "vllm-1" && strings.Contains(g.Message, "log"), "its group is %+v", g)
	g = s.Stable.Groups[0]
	assert.False(t, g.Reason == "Unreadable" || g.Revision == "", "the other group is %+v", g)
}
