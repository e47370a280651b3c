// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
)

func TestAddressOfLeader(t *testing.T) {
	for name, tt := range map[string]struct {
		change      func(*corev1.Pod)
		address     string
		hostNetwork bool
	}{
		"running":               {func(*corev1.Pod) {}, "10.0.0.1", false},
		"succeeded":             {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, "", false},
		"failed":                {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, "", false},
		"no address yet":        {func(p *corev1.Pod) { p.Status.PodIP = "" }, "", false},
		"hostNetwork":           {func(p *corev1.Pod) { p.Spec.HostNetwork = true }, "10.0.0.1", true},
		"the address of a node": {func(p *corev1.Pod) { p.Status.HostIP = p.Status.PodIP }, "10.0.0.1", true},
	} {
		t.Run(name, func(t *testing.T) {
			p := lwstest.Pod("vllm-1")
			p.Status.PodIP = "10.0.0.1"
			tt.change(p)
			pod := NewPod(p)
			assert.True(t, pod.address == tt.address && pod.hostNetwork == tt.hostNetwork,
				"address %q, hostNetwork %v; want %q, %v", pod.address, pod.hostNetwork, tt.address, tt.hostNetwork)
		})
	}
}
