// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package behavior makes the groups of a LeaderWorkerSet fail in tests.
package behavior

import (
	"fmt"
	"strconv"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// Edit returns a JSON merge patch of a LeaderWorkerSet with one container, "server". It sets the image to example.com/vllm
// with this tag, and the behavior of the pods to one of the cluster's Behavior constants. Empty means they become ready.
func Edit(tag, behavior string) string {
	value := "null"
	if behavior != "" {
		value = strconv.Quote(behavior)
	}
	return fmt.Sprintf(`{"spec":{"leaderWorkerTemplate":{"workerTemplate":{"metadata":{"annotations":{%q:%s}},"spec":{"containers":[
		{"name":"server","image":"example.com/vllm:%s"}]}}}}}`, cluster.AnnotationBehavior, value, tag)
}
