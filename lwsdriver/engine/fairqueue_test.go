// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
			require.LessOrEqual(t, taken, 1, "round %d: %d workloads of the noisy namespace came first, want at most one", round, taken)
		}
	}
	assert.Equal(t, 10_000, q.Len(), "workloads wait, want each noisy one once")
}
