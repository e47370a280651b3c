// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
)

func TestNoisyNamespaceDelaysAnotherByOneWorkload(t *testing.T) {
	q := newQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](time.Millisecond, time.Second))
	defer q.ShutDown()
	for i := range 10_000 {
		q.Add(types.NamespacedName{Namespace: "noisy", Name: fmt.Sprint(i)})
	}
	quiet := types.NamespacedName{Namespace: "quiet", Name: "vllm"}
	for round := range 3 {
		q.Add(quiet)
		for taken := 1; ; taken++ {
			key, _ := q.Get()
			q.Done(key)
			if key == quiet {
				break
			}
			q.Add(key) // a noisy workload changes all the time
			if taken > 1 {
				t.Fatalf("round %d: %d workloads of the noisy namespace came first, want at most one", round, taken)
			}
		}
	}
	if got := q.Len(); got != 10_000 {
		t.Errorf("%d workloads wait, want each noisy one once", got)
	}
}

func TestFairQueueTakesNamespacesInTurn(t *testing.T) {
	q := &fairQueue{waiting: map[string][]types.NamespacedName{}}
	for _, key := range []string{"a/1", "a/2", "a/3", "b/1", "c/1", "b/2"} {
		q.Push(types.NamespacedName{Namespace: key[:1], Name: key[2:]})
	}
	var got []string
	for q.Len() > 0 {
		got = append(got, q.Pop().String())
	}
	if want := []string{"a/1", "b/1", "c/1", "a/2", "b/2", "a/3"}; !slices.Equal(got, want) {
		t.Errorf("order is %v, want %v", got, want)
	}
	if len(q.waiting) != 0 || len(q.turns) != 0 {
		t.Errorf("an empty queue keeps namespaces: %v, %v", q.waiting, q.turns)
	}
}
