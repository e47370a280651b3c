// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

type workloadRef struct{ Name string }

// An object that does not decode still has its name and its workload, and nothing of what was decoded before the mistake.
func TestDecodeKeepsTheNames(t *testing.T) {
	t.Parallel()
	type spec struct {
		Before      int32
		WorkloadRef workloadRef
	}
	type object struct {
		Metadata metav1.ObjectMeta
		Spec     spec
	}
	u := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": "a"},
		"spec":     map[string]any{"before": int64(1), "workloadRef": map[string]any{"name": "vllm"}},
	}}
	want := object{metav1.ObjectMeta{Name: "a"}, spec{1, workloadRef{"vllm"}}}
	var got object
	err := Decode(u, &got)
	assert.True(t, err == nil && cmp.Equal(want, got), "%v: %s", err, cmp.Diff(want, got))
	_ = unstructured.SetNestedField(u.Object, int64(99999999999), "spec", "before")
	want.Spec.Before = 0
	err = Decode(u, &got)
	assert.True(t, errors.Is(err, errUndecodable) && cmp.Equal(want, got), "%v: %s", err, cmp.Diff(want, got))
}
