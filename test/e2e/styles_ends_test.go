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

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/assert"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// A release is promoted, and rolled back, from each of its batches and from before the first one.
//
// Proves (smoke, canary/rollback-0, canary/rollback-1, canary/rollback-2, canary/rollback-3): Canary: rollback from each batch leaves
// stable groups alone.
// Proves: Each style: promote and roll back from each batch; scale-down delay.
// Proves (test, blue-green/promote-3, blue-green/rollback-2): Blue-green: promoted from batch 3, rolled back from batch 2.
// Proves (test, partition/rollback-2, partition/rollback-3): Partition: rolled back from batches 2 and 3.
func TestStylesEnds(t *testing.T) {
	inStyles(t, func(t *testing.T, s style) {
		e := newEnv(t)
		for batch := int32(-1); batch < 3; batch++ {
			for name, intent := range map[string]pb.FinalizeIntent{"promote": promote, "rollback": rollback} {
				t.Run(fmt.Sprintf("%s-%d", name, batch+1), func(t *testing.T) {
					t.Parallel()
					w := e.in(t).adopt(model(fmt.Sprintf("%s-%d", name, batch+1), 4, 2))
					before := w.stablePods()
					w.edit(image("v2"))
					w.initialize("r1", s.policy(quarters()))
					for b := range batch + 1 {
						if c := w.upgrade("r1", b).GetContext(); c.GetState() != pb.State_STATE_READY || c.GetUpdatedReady() != []int32{1, 2, 4}[b] {
							t.Errorf("batch %d: %s", b, show(c))
						}
					}
					w.mustBeIdempotent("Finalize", w.finalizing("r1", intent))
					w.mustBeIdle()
					if intent == rollback {
						_, err := w.tryFinalize("r1", promote, long)
						mustFail(t, err, pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED)
						_, err = w.tryUpgrade("r1", 0, long)
						mustFail(t, err, pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED)
					}
					switch {
					case intent == promote:
						w.mustRun("v2")
					case s.inPlace():
						w.mustRun("v1")
						w.sameGroupsBelow(before, []int{4, 3, 2, 0}[batch+1])
					default:
						w.sameGroups(before)
					}
				})
			}
		}
	})
}

// In mid-release the template is reverted, which rolls back, or changes again, which restarts the release.
//
// Proves (test, canary/third): A third template in mid-release replaces the canary.
// Proves: Templates that change at every moment.
func TestStylesTemplateChanges(t *testing.T) {
	inStyles(t, func(t *testing.T, s style) {
		e := newEnv(t)
		beginIn := func(t *testing.T, e *env, name string) (*workload, func()) {
			w := e.in(t).adopt(model(name, 4, 2, annotated(cluster.AnnotationStartup, "200ms")))
			before := w.stablePods()
			w.edit(image("v2"))
			w.initialize("r1", s.policy(quarters()))
			w.upgrade("r1", 1)
			return w, func() {
				t.Helper()
				if s.inPlace() {
					w.sameGroupsBelow(before, 2)
				} else {
					w.sameGroups(before)
				}
			}
		}
		begin := func(t *testing.T, name string) (*workload, func()) {
			t.Helper()
			return beginIn(t, e, name)
		}
		t.Run("old", func(t *testing.T) {
			t.Parallel()
			w, same := begin(t, "old")
			w.edit(image("v1"))
			w.awaitState(rolledBack)
			w.mustRun("v1")
			same()
			w.mustBeIdle()
			r := w.finalize("r1", rollback)
			assert.Equal(t, unchanged, r.GetAction(), "Finalize(ROLLBACK) after the rollback: %v", r.GetAction())
			c := w.initialize("r2", s.policy(quarters())).GetContext()
			assert.Equal(t, pb.State_STATE_NOTHING_TO_RELEASE, c.GetState(), "a release of the stable template: %s", show(c))
			w.mustBeIdle()
		})
		t.Run("old-in-mid-batch", func(t *testing.T) {
			t.Parallel()
			// LWS rolls before the driver observes the template, and LWS's view of the unavailable group may be stale.
			e := newEnv(t)
			e.observer.waive(ruleDown)
			w, _ := beginIn(t, e, "mid")
			w.startBatch("r1", 2)
			w.edit(image("v1"))
			w.awaitState(rolledBack)
			w.mustRun("v1")
			w.mustBeIdle()
		})
		t.Run("third", func(t *testing.T) {
			t.Parallel()
			w, same := begin(t, "third")
			w.edit(image("v3"))
			w.await("the release starts over", func(c *pb.BatchContext) bool {
				return c.GetState() == pb.State_STATE_HOLDING && c.GetTarget() == ""
			})
			same()
			for b := range int32(3) {
				w.upgrade("r1", b)
			}
			w.finalize("r1", promote)
			w.mustRun("v3")
			w.mustBeIdle()
		})
		t.Run("third-rolled-back", func(t *testing.T) {
			t.Parallel()
			w, same := begin(t, "back")
			w.edit(image("v3"))
			w.await("the release starts over", func(c *pb.BatchContext) bool {
				return c.GetState() == pb.State_STATE_HOLDING && c.GetTarget() == ""
			})
			w.upgrade("r1", 0)
			w.finalize("r1", rollback)
			w.mustRun("v1")
			same()
			w.mustBeIdle()
		})
		t.Run("old-in-mid-promotion", func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			e.observer.waive(ruleDown) // as in mid-batch
			w := e.adopt(model("promotion", 4, 2, annotated(cluster.AnnotationStartup, "200ms")))
			w.edit(image("v2"))
			p := s.policy(quarters())
			p.MinReady = seconds(3) // the promotion does not complete before
			w.initialize("r1", p)
			w.startFinalize("r1", promote)
			w.awaitObject("the promotion reaches a group", func() bool { return w.groupsWith("v2") >= 1 })
			w.edit(image("v1"))
			w.awaitState(rolledBack)
			w.mustRun("v1")
			w.mustBeIdle()
		})
	})
}

// A promotion is rolled back after it updated some of the groups, and after it updated all of them.
//
// Proves (test, partition, canary): A promotion is rolled back, with some and with all groups updated.
// Proves: A promotion is rolled back in blue-green.
func TestStylesPromotionRolledBack(t *testing.T) {
	inStyles(t, func(t *testing.T, s style) {
		e := newEnv(t)
		for name, updated := range map[string]int{"some": 1, "all": 4} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := e.in(t).adopt(model(name, 4, 2, annotated(cluster.AnnotationStartup, "300ms")))
				before := w.get().Spec.LeaderWorkerTemplate
				w.edit(image("v2"))
				p := s.policy(quarters())
				p.MinReady = seconds(3) // the promotion does not complete before
				w.initialize("r1", p)
				w.startFinalize("r1", promote)
				w.awaitObject("the promotion reaches groups", func() bool { return w.groupsWith("v2") >= updated })
				w.startFinalize("r1", rollback)
				w.awaitState(rolledBack)
				w.mustRun("v1")
				w.mustBeIdle()
				if now := w.get().Spec.LeaderWorkerTemplate; updated == 4 && asJSON(now) != asJSON(before) {
					t.Errorf("all groups were updated, and the rollback did not restore the template: %s", asJSON(now))
				}
				_, err := w.tryFinalize("r1", promote, nil)
				mustFail(t, err, pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED)
			})
		}
	})
}

// Groups of the new template never become ready: the release fails at the deadline, and the host rolls back. In place it restarts a
// group, and no worker of the group is left for the next leader.
//
// Proves: Safety rule 8: thresholds, minReady, groups that never start.
func TestStylesRollbackOfUnreadyGroups(t *testing.T) {
	inStyles(t, func(t *testing.T, s style) {
		w := newEnv(t).adopt(model("model", 4, 2))
		before := w.stablePods()
		w.edit(image("v2"), withBehavior(cluster.BehaviorNeverReady), annotated(cluster.AnnotationTermination, "1s"))
		p := s.policy(quarters())
		p.ProgressDeadline = seconds(3)
		w.initialize("r1", p)
		if c := w.upgrade("r1", 1).GetContext(); c.GetState() != pb.State_STATE_FAILED || c.GetReason() != "ProgressDeadlineExceeded" {
			t.Errorf("after the deadline: %s", show(c))
		}
		unready := w.stablePods()
		w.startFinalize("r1", rollback)
		if s.inPlace() {
			w.awaitObject("group 3 is restarted", func() bool {
				pods := w.stablePods()
				leader, restarted := pods["model-3"]
				restarted = restarted && leader.UID != unready["model-3"].UID
				assert.False(t, restarted && pods["model-3-1"].UID == unready["model-3-1"].UID,
					"group 3 has a new leader, and a worker of the former one")
				return restarted
			})
		}
		w.awaitState(rolledBack) // the deadline may pass once more while groups restart
		w.mustRun("v1")
		w.mustBeIdle()
		if s.inPlace() {
			w.sameGroupsBelow(before, 3) // LWS waits for the first group and does not update the next
		} else {
			w.sameGroups(before)
		}
	})
}

// Groups do not count before they have been ready for minReady, and a batch is ready with as many failed groups as the policy's
// failure threshold allows.
//
// Proves: Safety rule 8: thresholds, minReady, groups that never start.
func TestStylesReadiness(t *testing.T) {
	inStyles(t, func(t *testing.T, s style) {
		e := newEnv(t)
		t.Run("min-ready", func(t *testing.T) {
			t.Parallel()
			w := e.in(t).adopt(model("min-ready", 3, 2))
			w.edit(image("v2"))
			p := s.policy(policy("34%", "100%"))
			p.MinReady = seconds(5)
			w.initialize("r1", p)
			start := time.Now()
			w.startBatch("r1", 0)
			c := w.awaitState(pb.State_STATE_VERIFYING, pb.State_STATE_READY)
			assert.True(t, c.GetState() == pb.State_STATE_VERIFYING && c.GetReason() == "WaitingForMinReady" && c.GetUpdatedReady() == 0,
				"before minReady: %s", show(c))
			// A pod's transition time has whole seconds.
			w.upgrade("r1", 0)
			assert.GreaterOrEqual(t, time.Since(start), 4*time.Second, "ready after")
			w.upgrade("r1", 1)
			w.finalize("r1", rollback)
			w.mustRun("v1")
			w.mustBeIdle()
		})
		t.Run("threshold", func(t *testing.T) {
			t.Parallel()
			w := e.in(t).adopt(model("threshold", 4, 2))
			w.edit(image("v2"), withBehavior(cluster.BehaviorNeverReady))
			p := s.policy(policy("100%"))
			p.FailureThreshold, p.ProgressDeadline = "25%", seconds(60)
			w.initialize("r1", p)
			w.startBatch("r1", 0)
			// In place LWS updates the next group once one is ready.
			for ready, group := range []int{3, 2, 1} {
				set := w.name
				if c := w.await("the group is updated", func(c *pb.BatchContext) bool { return c.GetUpdated() > int32(ready) }); !s.inPlace() {
					set = c.GetCanaryWorkload()
				}
				c := w.context()
				assert.Equal(t, pb.State_STATE_UPGRADING, c.GetState(), "with %d of 4 ready: %s", ready, show(c))
				// LWS may recreate the group once, with new pods.
				w.await("the group is ready", func(c *pb.BatchContext) bool {
					if c.GetUpdatedReady() > int32(ready) {
						return true
					}
					w.patchPods(set, heal, group)
					return false
				})
			}
			c := w.awaitState(pb.State_STATE_READY)
			// In place LWS may not have updated the last group yet.
			assert.False(t, c.GetFailureThreshold() != 1 || !s.inPlace() && !strings.Contains(c.GetMessage(), "group 0"),
				"with 3 of 4 ready: %s", show(c))
			w.finalize("r1", rollback)
			w.mustRun("v1")
			w.mustBeIdle()
		})
	})
}

// A user scales in mid-batch. Under a partition LWS creates the groups of a scale-up at the update revision; a
// scale-down removes those first.
//
// Proves (test, partition): Scaling in mid-release; to 0 and up again: it fails, and an abort restores the revision.
// Proves: Scaling in each style; no groups at all.
func TestStylesScaling(t *testing.T) {
	inStyles(t, func(t *testing.T, s style) {
		w := newEnv(t).adopt(model("model", 4, 2))
		w.edit(image("v2"))
		w.initialize("r1", s.policy(quarters()))
		w.upgrade("r1", 1)
		for _, step := range []struct{ replicas, planned, most int32 }{{8, 4, 6}, {3, 2, 2}, {6, 3, 5}} {
			w.scale(step.replicas)
			c := w.await("the batch is ready at the new scale", func(c *pb.BatchContext) bool {
				total := step.replicas
				if !s.inPlace() {
					total += step.planned
				}
				if !s.inPlace() && c.GetStableReady() != step.replicas {
					return false
				}
				return c.GetReplicas() == step.replicas && c.GetState() == pb.State_STATE_READY && c.GetTotal() == total &&
					len(w.stablePods()) == int(2*step.replicas)
			})
			assert.False(t, c.GetPlanned() != step.planned || c.GetUpdatedReady() < step.planned || c.GetUpdatedReady() > step.most ||
				!s.inPlace() && c.GetUpdatedReady() != step.planned, "at %d groups: %s", step.replicas, show(c))
			if !s.inPlace() {
				w.mustRun("v1") // new groups are at the stable revision
			}
		}
		w.upgrade("r1", 2)
		w.startFinalize("r1", promote)
		w.scale(5)
		w.awaitState(completed)
		w.awaitReady()
		w.mustRun("v2")
		w.mustBeIdle()
	})
}

// Different rolling update settings of the user, and a workload of one group: promoted and rolled back.
//
// Proves: Scaling in each style; no groups at all.
func TestStylesRollingUpdateSettings(t *testing.T) {
	inStyles(t, func(t *testing.T, s style) {
		e := newEnv(t)
		slow := annotated(cluster.AnnotationStartup, "200ms")
		for _, object := range []*lws.LeaderWorkerSet{
			model("one", 1, 2),
			model("one-at-a-time", 4, 1, slow, rolling("1", "0", -1)),
			model("two", 4, 2, slow, rolling("2", "0", -1)),
			model("half", 4, 2, slow, rolling("50%", "1", -1)),
			model("all", 4, 2, slow, rolling("100%", "0", -1)),
			model("surge-only", 3, 2, slow, rolling("0", "1", -1)),
		} {
			t.Run(object.Name, func(t *testing.T) {
				t.Parallel()
				w := e.in(t).adopt(object)
				w.edit(image("v2"))
				w.initialize("r1", s.policy(policy("50%", "100%")))
				w.upgrade("r1", 0)
				w.upgrade("r1", 1)
				w.finalize("r1", rollback)
				w.mustRun("v1")
				w.edit(image("v3"))
				w.release("r2", s.policy(policy("50%", "100%")))
				w.mustRun("v3")
			})
		}
	})
}

// A GitOps tool applies the manifest again in mid-batch, with rolling update settings: they are saved, the batch's partition is
// restored, and Disown restores the applied settings.
//
// Proves (test, partition): GitOps applies its settings over the hold.
// Proves: GitOps, in each style and at each moment.
func TestStylesManifestApplied(t *testing.T) {
	inStyles(t, func(t *testing.T, s style) {
		e := newEnv(t)
		// For a moment LWS rolls by the manifest's settings.
		e.observer.Waive()
		e.observer.waive(ruleHold, ruleBatch, ruleDown, ruleStableUntouched)
		w := e.adopt(model("model", 4, 2, annotated(cluster.AnnotationStartup, "200ms")))
		w.edit(image("v2"))
		w.initialize("r1", s.policy(quarters()))
		w.startBatch("r1", 1)
		applied := lws.RollingUpdateConfiguration{Partition: ptr.To[int32](0), MaxUnavailable: intstr.FromInt32(2), MaxSurge: intstr.FromInt32(0)}
		w.edit(func(o *lws.LeaderWorkerSet) { *o.Spec.RolloutStrategy.RollingUpdateConfiguration = applied })
		w.awaitObject("the partition is restored", func() bool {
			return slices.Contains([]int{2, holdPartition}, partitionOf(w.get())) && w.record().Saved.MaxUnavailable == applied.MaxUnavailable
		})
		w.awaitState(pb.State_STATE_READY)
		w.upgrade("r1", 2)
		w.finalize("r1", promote)
		w.mustRun("v2")
		w.mustBeIdle()
		w.disown(w.ref())
		assert.Equal(t, asJSON(applied), asJSON(w.get().Spec.RolloutStrategy.RollingUpdateConfiguration), "Disown restored")
	})
}
