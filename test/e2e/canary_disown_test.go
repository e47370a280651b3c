// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// Disown restores the spec byte for byte, for all kinds of rolling update settings, with and without a release in between.
//
// Proves: Safety rule 7: Disown restores the spec byte for byte.
// Proves (test, canary/percent): Safety rule 7: Disown restores percentages; a waiting template rolls.
func TestStylesDisown(t *testing.T) { inStyles(t, disownExactly) }

func disownExactly(t *testing.T, s style) {
	t.Helper()
	e := newEnv(t)
	for _, test := range []struct {
		name   string
		change func(*lws.LeaderWorkerSet)
	}{
		{"defaults", func(*lws.LeaderWorkerSet) {}},
		{"counts", rolling("2", "0", -1)},
		{"surge-only", rolling("0", "2", -1)},
		{"percent", rolling("25%", "50%", -1)},
		{"partition", rolling("1", "0", 2)},
		{"only-unavailable", func(w *lws.LeaderWorkerSet) {
			w.Spec.RolloutStrategy.RollingUpdateConfiguration = &lws.RollingUpdateConfiguration{MaxUnavailable: intstr.FromString("100%")}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := e.in(t).deploy(model(test.name, 3, 1, test.change))
			original := w.spec()
			for _, ends := range [][]pb.FinalizeIntent{nil, {rollback}, {promote}} {
				released := len(ends) > 0
				_, err := w.driver.Adopt(t.Context(), &pb.AdoptRequest{Workload: w.ref()})
				require.NoError(t, err)
				assert.True(t, isHold(w.get().Spec.RolloutStrategy.RollingUpdateConfiguration), "adopted, but not held")
				if released {
					w.edit(image("v2"))
					id := fmt.Sprint("r", ends[0].Number())
					w.initialize(id, s.policy(policy("100%")))
					w.upgrade(id, 0)
					_, err := w.driver.Disown(t.Context(), &pb.DisownRequest{Workload: w.ref()})
					mustFail(t, err, pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS)
					w.finalize(id, ends[0])
					// In place the rollback has restored the template itself.
					if ends[0] == rollback && !s.inPlace() {
						w.edit(image("v1"))
					}
				}
				w.disown(w.ref())
				if released && ends[0] == promote {
					w.edit(image("v1"))
				}
				now := w.spec()
				assert.Equal(t, original, now, "%v: the spec is not restored\n was %s\n now %s", ends, original, now)
				if s := w.get(); s.Annotations[recordAnnotation] != "" || len(s.Finalizers) > 0 {
					t.Errorf("%v: the record or a finalizer is left: %s", ends, asJSON(s.ObjectMeta))
				}
			}
		})
	}
}

// Disowning a workload whose template waits lets LWS roll it, with a warning.
//
// Proves (test): Safety rule 7: Disown restores percentages; a waiting template rolls.
func TestCanaryDisownRolls(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 2, 2))
	w.edit(image("v2"))
	w.initialize("r1", policy("50%", "100%"))
	w.upgrade("r1", 0)
	w.finalize("r1", rollback)
	r, err := w.driver.Disown(t.Context(), &pb.DisownRequest{Workload: w.ref()})
	require.True(t, err == nil && len(r.GetWarnings()) == 1 && r.GetWarnings()[0].GetCode() == "RollStarts", "Disown: %v, %v", r, err)
	w.awaitRolled()
	w.mustRun("v2")
}

// awaitRolled waits until LWS has rolled the template that waited, to both groups.
func (w *workload) awaitRolled() {
	w.t.Helper()
	w.awaitObject("LWS has rolled it", func() bool {
		s := w.get()
		return s.Status.ObservedGeneration == s.Generation && s.Status.UpdatedReplicas == 2 && s.Status.ReadyReplicas == 2
	})
}

// A stream sends the states in order, and ends with a retryable error or none when the driver stops.
//
// Proves: SPEC: the conformance suite; rule 4: wait and watches; rule 7: two drivers, two callers.
func TestCanaryWatch(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 2, 2, annotated(cluster.AnnotationStartup, "200ms")))
	var seen []*pb.BatchContext
	ended := make(chan error, 1)
	opened := make(chan struct{})
	go func() {
		var last error
		for c, err := range w.driver.WatchBatchContext(t.Context(), &pb.WatchBatchContextRequest{Workload: w.ref()}) {
			if err != nil {
				last = err
				break
			}
			if seen = append(seen, c); len(seen) == 1 {
				close(opened)
			}
		}
		ended <- last
	}()
	<-opened
	w.edit(image("v2"))
	w.release("r1", policy("50%", "100%"))
	w.driver.Stop()
	select {
	case err := <-ended:
		assert.False(t, err != nil && !plugin.Retryable(err), "the stream ended with %v", err)
	case <-time.After(await.Patience):
		t.Fatal("the stream did not end with the driver")
	}
	var states []pb.State
	for i, c := range seen {
		if i > 0 && c.GetReleaseId() == seen[i-1].GetReleaseId() && c.GetState() != completed && c.GetPlanned() < seen[i-1].GetPlanned() {
			t.Errorf("the plan shrank: %s, then %s", show(seen[i-1]), show(c))
		}
		if len(states) == 0 || states[len(states)-1] != c.GetState() {
			states = append(states, c.GetState())
		}
	}
	order := []pb.State{
		pb.State_STATE_HOLDING, pb.State_STATE_PREPARING, pb.State_STATE_UPGRADING, pb.State_STATE_READY, pb.State_STATE_PROMOTING, completed,
	}
	at := 0
	for _, s := range order {
		i := slices.Index(states[at:], s)
		if i < 0 && s != pb.State_STATE_PREPARING { // which may be too short to be observed
			t.Fatalf("states %v lack %v in order", states, s)
		}
		at += max(i, 0)
	}
	last := states[len(states)-1]
	assert.Equal(t, completed, last, "the last state is %v", last)
}

// The record is removed by hand, which is the remedy for an invalid record: the release is dropped, the hold stays until Adopt
// and Disown remove it, and LWS rolls the workload again.
//
// Proves: Safety rule 9: a record copied or removed by hand.
func TestCanaryRecordRemoved(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 2, 2))
	w.observer.waive(ruleIntent)
	before := w.stablePods()
	w.edit(image("v2"))
	w.initialize("r1", policy("50%", "100%"))
	w.upgrade("r1", 0)
	w.mergePatch(`{"metadata":{"annotations":{"` + recordAnnotation + `":null}}}`)
	w.eventually("the canary is deleted", w.leftovers)
	assert.True(t, isHold(w.get().Spec.RolloutStrategy.RollingUpdateConfiguration), "the hold was removed with the record")
	w.sameGroups(before)
	r, err := w.driver.Adopt(t.Context(), &pb.AdoptRequest{Workload: w.ref()})
	require.True(t, err == nil && len(r.GetWarnings()) == 1 && r.GetWarnings()[0].GetCode() == "HoldFound", "Adopt: %v, %v", r, err)
	w.sameGroups(before)
	w.disown(w.ref())
	c := w.get().Spec.RolloutStrategy.RollingUpdateConfiguration
	assert.True(t, ptr.Deref(c.Partition, 0) == 0 && c.MaxUnavailable == intstr.FromInt32(1), "Disown restored %s", asJSON(c))
	w.awaitRolled()
	w.mustRun("v2")
}

func (w *workload) mergePatch(patch string) {
	w.t.Helper()
	suite.Patch(w.t, w.dynamicSets(), w.name, patch)
}

// After a scale-down under the hold the user's percentages round to zero groups, which LWS refuses: Disown fails with a remedy,
// and the remedy works.
//
// Proves: Labels of batches; Disown after a scale-down.
func TestCanaryDisownRoundsToZero(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 4, 1, rolling("25%", "0", -1)))
	w.observer.Waive()
	w.observer.waive(ruleHold) // the remedy edits the hold
	w.scale(2)
	w.await("the driver has observed the scale-down", func(c *pb.BatchContext) bool { return c.GetReplicas() == 2 })
	disown := func() error {
		_, err := w.driver.Disown(t.Context(), &pb.DisownRequest{Workload: w.ref()})
		return err
	}
	mustFail(t, disown(), pb.ErrorReason_ERROR_REASON_REJECTED, "25%", "2 groups", "maxSurge")
	w.mustBeIdle()
	w.edit(func(s *lws.LeaderWorkerSet) {
		s.Spec.RolloutStrategy.RollingUpdateConfiguration.MaxSurge = intstr.FromInt32(1)
	})
	w.awaitObject("the hold is restored", func() bool { return isHold(w.get().Spec.RolloutStrategy.RollingUpdateConfiguration) })
	await.True(t, "the log names who changed it", func() bool {
		return strings.Contains(w.driver.Log(), "e2e-user has changed the rolling update configuration")
	})
	require.NoError(t, disown())
	c := w.get().Spec.RolloutStrategy.RollingUpdateConfiguration
	assert.True(t, c.MaxUnavailable == intstr.FromString("25%") && c.MaxSurge == intstr.FromInt32(1), "Disown restored %s", asJSON(c))
}
