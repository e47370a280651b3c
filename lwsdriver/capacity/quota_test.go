// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func equal(a, b any) bool { return apiequality.Semantic.DeepEqual(a, b) }

// quota has this hard and this used.
func quota(hard, used corev1.ResourceList, changes ...func(*corev1.ResourceQuota)) *corev1.ResourceQuota {
	q := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "q"},
		Spec:       corev1.ResourceQuotaSpec{Hard: hard}, Status: corev1.ResourceQuotaStatus{Hard: hard, Used: used},
	}
	for _, change := range changes {
		change(q)
	}
	return q
}

func scoped(scopes ...corev1.ResourceQuotaScope) func(*corev1.ResourceQuota) {
	return func(q *corev1.ResourceQuota) { q.Spec.Scopes = scopes }
}

func priority(op corev1.ScopeSelectorOperator, classes ...string) func(*corev1.ResourceQuota) {
	return func(q *corev1.ResourceQuota) {
		q.Spec.ScopeSelector = &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{
			{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: op, Values: classes},
		}}
	}
}

// words are shortages in short.
func words(all []Shortage) string {
	var out []string
	for _, s := range all {
		out = append(out, fmt.Sprintf("%s %s of %s", s.Resource, s.Needed.String(), s.Left.String()))
	}
	return strings.Join(out, ", ")
}

// server is a pod of 8 GPUs whose CPU is limited.
func server() corev1.PodSpec {
	c := requesting("nvidia.com/gpu", "8", "cpu", "2", "hugepages-2Mi", "100Mi")
	c.Resources.Limits = res("nvidia.com/gpu", "8", "cpu", "4", "hugepages-2Mi", "100Mi")
	return corev1.PodSpec{Containers: []corev1.Container{c}}
}

func TestShortages(t *testing.T) {
	plain := need(2, 4, server()) // 8 pods
	for _, tt := range []struct {
		name, reason string
		quota        *corev1.ResourceQuota
		want         string
	}{
		{"room", "exactly enough is enough", quota(res("pods", "16", "requests.nvidia.com/gpu", "128"), res("pods", "8", "requests.nvidia.com/gpu", "64")), ""},
		{"pods", "one too few", quota(res("pods", "15"), res("pods", "8")), "pods 8 of 7"},
		{"GPUs", "the extended resource", quota(res("requests.nvidia.com/gpu", "64"), res("requests.nvidia.com/gpu", "64")), "requests.nvidia.com/gpu 64 of 0"},
		{"both names", "cpu is requests.cpu", quota(res("cpu", "1", "requests.cpu", "2"), nil), "cpu 16 of 1, requests.cpu 16 of 2"},
		{"limits", "limits count apart", quota(res("limits.cpu", "31", "requests.cpu", "31"), nil), "limits.cpu 32 of 31"},
		{"hugepages", "in both spellings", quota(res("hugepages-2Mi", "1Mi", "requests.hugepages-2Mi", "1Mi"), nil), "hugepages-2Mi 800Mi of 1Mi, requests.hugepages-2Mi 800Mi of 1Mi"},
		{"others", "what the pods don't ask for is no concern", quota(res("requests.amd.com/gpu", "0", "requests.memory", "0", "count/jobs.batch", "0"), nil), ""},
		{"count", "pods have two names", quota(res("count/pods", "7"), nil), "count/pods 8 of 7"},
		{"over", "a quota that was lowered leaves nothing", quota(res("pods", "4"), res("pods", "8")), "pods 8 of 0"},
		{"not counted", "a quota that is new", quota(nil, nil, func(q *corev1.ResourceQuota) { q.Spec.Hard = res("pods", "7") }), "pods 8 of 7"},
		{"not terminating", "no deadline", quota(res("pods", "0"), nil, scoped(corev1.ResourceQuotaScopeNotTerminating)), "pods 8 of 0"},
		{"terminating", "they are not", quota(res("pods", "0"), nil, scoped(corev1.ResourceQuotaScopeTerminating)), ""},
		{"not best effort", "they ask for CPU", quota(res("pods", "0"), nil, scoped(corev1.ResourceQuotaScopeNotBestEffort)), "pods 8 of 0"},
		{"best effort", "they are not", quota(res("pods", "0"), nil, scoped(corev1.ResourceQuotaScopeBestEffort)), ""},
		{"two scopes", "all must match", quota(res("pods", "0"), nil, scoped(corev1.ResourceQuotaScopeNotTerminating, corev1.ResourceQuotaScopeBestEffort)), ""},
		{"class in", "they have none", quota(res("pods", "0"), nil, priority(corev1.ScopeSelectorOpIn, "high")), ""},
		{"class not in", "none is not in it", quota(res("pods", "0"), nil, priority(corev1.ScopeSelectorOpNotIn, "high")), "pods 8 of 0"},
		{"class exists", "it does not", quota(res("pods", "0"), nil, priority(corev1.ScopeSelectorOpExists)), ""},
		{"no class", "as it is", quota(res("pods", "0"), nil, priority(corev1.ScopeSelectorOpDoesNotExist)), "pods 8 of 0"},
		{"affinity", "none across namespaces", quota(res("pods", "0"), nil, scoped(corev1.ResourceQuotaScopeCrossNamespacePodAffinity)), ""},
		{"claims", "a scope of volume claims", quota(res("pods", "0"), nil, scoped(corev1.ResourceQuotaScopeVolumeAttributesClass)), ""},
		{"unknown scope", "a refusal can be overruled", quota(res("pods", "0"), nil, scoped("Phase2030")), "pods 8 of 0"},
		{"scoped objects", "a scope is about pods", quota(res("persistentvolumeclaims", "0"), nil, scoped(corev1.ResourceQuotaScopeNotTerminating)), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			assert.Equal(t, tt.want, words(plain.Shortages(tt.quota)), "%s: short of", tt.reason)
		})
	}
}

// Scopes are judged for leaders and workers apart.
func TestShortagesOfScopedLeaders(t *testing.T) {
	n := need(3, 4, server())
	leader := n.Template.WorkerTemplate.DeepCopy()
	leader.Spec.PriorityClassName, leader.Spec.ActiveDeadlineSeconds = "high", ptr.To[int64](60)
	n.Template.LeaderTemplate = leader
	for name, q := range map[string]*corev1.ResourceQuota{
		"class":       quota(res("pods", "0"), nil, priority(corev1.ScopeSelectorOpIn, "low", "high")),
		"exists":      quota(res("pods", "0"), nil, priority(corev1.ScopeSelectorOpExists)),
		"terminating": quota(res("pods", "0"), nil, scoped(corev1.ResourceQuotaScopeTerminating)),
	} {
		got := words(n.Shortages(q))
		assert.Equal(t, "pods 3 of 0", got, "%s: short of %q, want the leaders", name, got)
	}
	got := words(n.Shortages(quota(res("pods", "0"), nil, priority(corev1.ScopeSelectorOpNotIn, "high"))))
	assert.Equal(t, "pods 9 of 0", got, "short of %q, want the workers", got)
}

func TestShortagesOfClaims(t *testing.T) {
	n := need(2, 2, corev1.PodSpec{Containers: []corev1.Container{{}}})
	n.Template.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{
		{Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To("ssd"), Resources: corev1.VolumeResourceRequirements{Requests: res("storage", "100Gi")},
		}},
		{Spec: corev1.PersistentVolumeClaimSpec{Resources: corev1.VolumeResourceRequirements{Requests: res("storage", "1Gi")}}},
	}
	got := words(n.Shortages(quota(res(
		"requests.storage", "0", "persistentvolumeclaims", "7", "ssd.storageclass.storage.k8s.io/requests.storage", "399Gi",
		"ssd.storageclass.storage.k8s.io/persistentvolumeclaims", "4", "hdd.storageclass.storage.k8s.io/requests.storage", "0",
	), nil)))
	want := "persistentvolumeclaims 8 of 7, requests.storage 404Gi of 0, " +
		"ssd.storageclass.storage.k8s.io/requests.storage 400Gi of 399Gi"
	assert.Equal(t, want, got, "short of")
}
