// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// res is a list of resources, by pairs of name and quantity.
func res(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

func requesting(pairs ...string) corev1.Container {
	return corev1.Container{Name: "c", Resources: corev1.ResourceRequirements{Requests: res(pairs...)}}
}

func limited(pairs ...string) corev1.Container {
	return corev1.Container{Name: "c", Resources: corev1.ResourceRequirements{Limits: res(pairs...)}}
}

func sidecar(c corev1.Container) corev1.Container {
	c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	return c
}

// need is groups of a size whose pods are all alike.
func need(groups, size int, spec corev1.PodSpec) Need {
	return Need{
		Groups:   groups,
		Template: lws.LeaderWorkerTemplate{Size: ptr.To(int32(size)), WorkerTemplate: corev1.PodTemplateSpec{Spec: spec}},
	}
}

func TestRequests(t *testing.T) {
	leader := need(2, 3, corev1.PodSpec{Containers: []corev1.Container{requesting("nvidia.com/gpu", "8", "cpu", "2")}})
	leader.Template.LeaderTemplate = &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{requesting("cpu", "500m")}}}
	for _, tt := range []struct {
		name, reason string
		need         Need
		want         string
	}{
		{
			"plain", "each of 2 x 4 pods asks for it",
			need(2, 4, corev1.PodSpec{Containers: []corev1.Container{requesting("nvidia.com/gpu", "8", "memory", "1Gi")}}),
			"nvidia.com/gpu 64, memory 8Gi",
		},
		{"nothing", "pods need not ask for anything", need(2, 4, corev1.PodSpec{Containers: []corev1.Container{{}}}), ""},
		{"leader template", "2 leaders without GPUs, 4 workers with 8", leader, "nvidia.com/gpu 32, cpu 9"},
		{
			"limits", "a limit is the request where there is none",
			need(1, 2, corev1.PodSpec{Containers: []corev1.Container{limited("nvidia.com/gpu", "4", "cpu", "1")}}), "nvidia.com/gpu 8, cpu 2",
		},
		{
			"init", "init containers run before the others: the larger counts",
			need(1, 1, corev1.PodSpec{
				InitContainers: []corev1.Container{requesting("cpu", "8", "memory", "1Gi")},
				Containers:     []corev1.Container{requesting("cpu", "2", "memory", "4Gi")},
			}), "cpu 8, memory 4Gi",
		},
		{
			"sidecar", "a sidecar runs beside them, and beside init containers that come after it",
			need(1, 1, corev1.PodSpec{
				InitContainers: []corev1.Container{sidecar(requesting("cpu", "1")), requesting("cpu", "8")},
				Containers:     []corev1.Container{requesting("cpu", "2")},
			}), "cpu 9",
		},
		{
			"overhead", "of the sandbox",
			need(2, 1, corev1.PodSpec{Containers: []corev1.Container{requesting("cpu", "1")}, Overhead: res("cpu", "250m")}), "cpu 2500m",
		},
		{
			"pod", "the pod's own request overrules the sum",
			need(1, 1, corev1.PodSpec{
				Containers: []corev1.Container{requesting("cpu", "1", "nvidia.com/gpu", "1")},
				Resources:  &corev1.ResourceRequirements{Requests: res("cpu", "4")},
			}), "nvidia.com/gpu 1, cpu 4",
		},
		{
			"pod limit", "requests of containers take precedence",
			need(1, 1, corev1.PodSpec{
				Containers: []corev1.Container{requesting("cpu", "1")},
				Resources:  &corev1.ResourceRequirements{Limits: res("cpu", "4", "memory", "1Gi")},
			}), "cpu 1, memory 1Gi",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := tt.need.Template.DeepCopy()
			assert.Equal(t, tt.want, Text(tt.need.Requests()), "%s: requests", tt.reason)
			assert.True(t, equal(*before, tt.need.Template), "the template was modified")
		})
	}
}

func TestPods(t *testing.T) {
	if n := need(3, 8, corev1.PodSpec{}); n.Pods() != 24 || n.Size() != 8 {
		t.Errorf("%d pods in groups of %d", n.Pods(), n.Size())
	}
	assert.Equal(t, 3, (Need{Groups: 3}).Pods(), "pods of 3 groups without a size")
}
