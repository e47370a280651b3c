// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// maxLook is how many bytes a look at a workload with two pods, and an answer about it, may allocate, whatever its spec says. A million
// listed groups take 340 MiB. What else the process does meanwhile is counted, too, and the race detector adds to it.
const maxLook = 1 << 20

// allocated returns how many bytes a call allocates.
func allocated(call func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	call()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestNumbersInASpecCostNothing: the memory that a call takes depends on pods that exist, not on replicas or size.
func TestNumbersInASpecCostNothing(t *testing.T) {
	styles := map[string]pb.Style{"unadopted": 0, "canary": pb.Style_STYLE_CANARY, "partition": pb.Style_STYLE_PARTITION, "blue-green": pb.Style_STYLE_BLUE_GREEN}
	for name, style := range styles {
		for _, phase := range []record.Phase{record.Progressing, record.Promoting, record.RollingBack} {
			for _, replicas := range []int32{1_000_000, math.MaxInt32} {
				if style == 0 && phase != record.Progressing {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%d", name, phase, replicas), func(t *testing.T) {
					b := newFixture(t, largeWorkload(t, replicas, style, phase))
					b.showPod(lwstest.Pod("vllm-0"))
					b.showPod(lwstest.Pod("vllm-7"))
					checkCheap(t, b)
					b.runSynced()
					b.eventually("the driver is at rest", b.engine.Idle)
					checkPlanRefused(t, b)
				})
			}
		}
	}
}

// largeWorkload returns default/vllm with many replicas of many pods, in a release unless the style is 0.
func largeWorkload(t *testing.T, replicas int32, style pb.Style, phase record.Phase) *lws.LeaderWorkerSet {
	t.Helper()
	w := lwstest.StableWorkload()
	if style == 0 {
		delete(w.Annotations, record.RecordAnnotation)
	} else {
		w = lwstest.InPhase(t, phase)
		r, err := record.DecodeRecord(w.Annotations[record.RecordAnnotation])
		require.NoError(t, err)
		policy, err := record.EncodePolicy(&pb.ReleasePolicy{Style: style, Batches: []string{"1", "2147483647"}})
		require.NoError(t, err)
		r.Release.Policy, r.Release.Replicas = policy, int(replicas)
		r.Release.Target = &record.Target{At: lwstest.Noon, Groups: "1", Batch: ptr.To(0)}
		w = lwstest.WithRecord(t, w, *r)
	}
	w.Spec.Replicas, w.Spec.LeaderWorkerTemplate.Size = &replicas, &replicas
	return w
}

func checkCheap(t *testing.T, b *fixture) {
	t.Helper()
	for name, call := range map[string]func() error{
		"look": func() error { _, _, err := b.engine.Look(lwstest.VLLM); return err },
		"rows": func() error {
			c, _, err := b.contextOf(lwstest.VLLM, "", true)
			assert.True(t, len(c.GetGroups()) <= maxMissingRows+2 && len(c.GetGroups())+int(c.GetGroupsOmitted()) == int(c.GetReplicas()),
				"%d rows and %d omitted of %d groups", len(c.GetGroups()), c.GetGroupsOmitted(), c.GetReplicas())
			return err
		},
		"budgets": func() error {
			w := preflightOf(b.look(), nil).Pods()
			if leaders, workers := w.Selected(labels.Everything()); leaders != w.Groups || workers != w.Groups*(w.Size-1) {
				t.Errorf("a budget selects %d leaders and %d workers", leaders, workers)
			}
			return nil
		},
	} {
		var err error
		_ = call() // caches
		n := allocated(func() { err = call() })
		assert.LessOrEqual(t, n, uint64(maxLook), "%s allocates %d kB", name, n>>10)
		assert.NoError(t, err, name)
	}
}

func checkPlanRefused(t *testing.T, b *fixture) {
	t.Helper()
	r := &pb.PlanRequest{Workload: vllmRef, Policy: &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"100%"}}}
	_, err := b.Plan(t.Context(), r)
	assert.True(t, status.Code(err) == codes.Unimplemented && strings.Contains(err.Error(), "at most"), "Plan: %v", err)
}
