// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/cache"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin/informer"
)

// large returns metadata of about a MiB, as any user may write it.
func large(name string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{}, Annotations: map[string]string{"a": strings.Repeat("x", 250<<10)}}
	for i := range 8 << 10 {
		m.Labels[fmt.Sprint("label-", i)] = strings.Repeat("y", 63)
	}
	return m
}

// What a user may make large is not kept. A PodDisruptionBudget whose rest is large is named instead.
func TestMemoryOfNearbyObjects(t *testing.T) {
	const objects, most = 100, 16 << 10
	wide := func() *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: "a", Operator: metav1.LabelSelectorOpIn, Values: strings.Fields(strings.Repeat(strings.Repeat("z", 63)+" ", 16<<10)),
		}}}
	}
	one := intstr.FromInt32(1)
	for name, test := range map[string]struct {
		make      func(name string) metav1.Object
		transform cache.TransformFunc
	}{
		"metadata of a budget": {func(name string) metav1.Object {
			return &policyv1.PodDisruptionBudget{ObjectMeta: large(name), Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one}}
		}, informer.Transform(stripBudget)},
		"selector of a budget": {func(name string) metav1.Object {
			return &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: wide()}}
		}, informer.Transform(stripBudget)},
		"metadata of a quota": {func(name string) metav1.Object {
			return &corev1.ResourceQuota{ObjectMeta: large(name)}
		}, informer.Transform(stripMetadata)},
	} {
		var kept []any
		before := heap()
		for i := range objects {
			o, err := test.transform(test.make(fmt.Sprint(i)))
			require.NoError(t, err)
			kept = append(kept, o)
		}
		each := (heap() - before) / objects
		t.Logf("%s: %d bytes each", name, each)
		assert.LessOrEqual(t, each, uint64(most), "%s: an object takes %d bytes of the heap, want at most %d", name, each, most)
		runtime.KeepAlive(kept)
	}
}
