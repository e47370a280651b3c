// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

var poison = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "poison"}}

func TestCall(t *testing.T) {
	var log bytes.Buffer
	err := Call(slog.New(slog.NewTextHandler(&log, nil)), "observe", "default/vllm", func() { panic("a defect") })
	if err == nil || !strings.Contains(err.Error(), "default/vllm") || !strings.Contains(log.String(), "a defect") || !strings.Contains(log.String(), "guard_test.go") {
		t.Errorf("%v, logged %s", err, log.String())
	}
	assert.NoError(t, Call(nil, "observe", "default/vllm", func() {}))
}

// An informer with a transform, an indexer and a handler that panic for one object stores and reports the others.
func TestInformerCallbacks(t *testing.T) {
	fail := func(obj any) {
		if obj == any(poison) {
			panic("a defect")
		}
	}
	same := Transform(func(obj any) (any, error) { fail(obj); return obj, nil }, nil)
	instead := Transform(func(obj any) (any, error) { fail(obj); return obj, nil }, func(any) any { return "a stub" })
	got, err := same(poison)
	assert.True(t, got == any(poison) && err == nil, "%v, %v", got, err)
	got, err = instead(poison)
	assert.True(t, got == "a stub" && err == nil, "%v, %v", got, err)
	store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, Indexers(cache.Indexers{
		"fails": func(obj any) ([]string, error) { fail(obj); return []string{"all"}, nil },
		"works": func(any) ([]string, error) { return []string{"all"}, nil },
	}))
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "other"}}
	for _, obj := range []any{poison, other} {
		require.NoError(t, store.Add(obj))
	}
	for index, want := range map[string]int{"fails": 1, "works": 2} {
		got, err := store.ByIndex(index, "all")
		assert.True(t, len(got) == want && err == nil, "%d objects in index %s, %v", len(got), index, err)
	}
	seen := 0
	h := Handler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { fail(obj); seen++ }, UpdateFunc: func(_, obj any) { fail(obj); seen++ }, DeleteFunc: func(obj any) { fail(obj); seen++ },
	})
	for _, obj := range []any{poison, other} {
		h.OnAdd(obj, false)
		h.OnUpdate(obj, obj)
		h.OnDelete(obj)
	}
	assert.Equal(t, 3, seen, "events of the other object are handled")
}
