// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// leaseDuration is that of the driver's Lease.
const leaseDuration = 15 * time.Second

// The driver is suspended for longer than its Lease lasts. Meanwhile the updated group breaks, and a host asks for the promotion, which
// the driver reads first of all when it continues. It promotes nothing by what it knew, and the release is continued, by it or by the
// server that took over.
//
// Proves: Safety rule 13: the driver is suspended for longer than its Lease lasts, alone and with another server.
func TestSuspended(t *testing.T) {
	t.Parallel()
	t.Run("alone", func(t *testing.T) {
		t.Parallel()
		w := newEnv(t).released()
		w.suspend(func(stopped time.Time) {
			await.True(t, "it is suspended for longer than a Lease lasts", func() bool { return time.Since(stopped) > leaseDuration })
		}, pb.ErrorReason_ERROR_REASON_NOT_SYNCED)
		broken := w.await("the batch is observed to be unready", func(c *pb.BatchContext) bool { return c.GetReason() == "GroupsNotReady" })
		assert.NotEqual(t, pb.State_STATE_READY, broken.GetState(), "the batch counts as %s", show(broken))
		w.end()
	})
	t.Run("with another server", func(t *testing.T) {
		t.Parallel()
		e := newEnvIn(t, cluster.Shared(t))
		first, second := e.candidate("first", nil), e.candidate("second", nil)
		first.Begin()
		first.AwaitSync()
		e.driver = first
		w := e.released()
		second.Begin()
		standby, before := w.withDriver(second), 0
		w.suspend(func(time.Time) {
			before, _, _ = e.written("first")
			second.AwaitSync()
			standby.await("the other server leads", func(c *pb.BatchContext) bool { return c.GetReason() == "GroupsNotReady" })
		}, pb.ErrorReason_ERROR_REASON_NOT_SYNCED, pb.ErrorReason_ERROR_REASON_UNSPECIFIED) // it ends, and its connections with it
		first.AwaitExit()
		e.driver = second
		standby.end()
		n, _, _ := e.written("first")
		assert.Equal(t, before, n, "the first server made %d writes, %d of them after it was suspended", n, n-before)
	})
}

// released returns a workload whose first batch is ready.
func (e *env) released() *workload {
	w := e.adopt(model("model", 3, 2))
	w.edit(image("v2"))
	w.initialize("r1", policy("1", "3"))
	w.upgrade("r1", 0)
	return w
}

// suspend stops the driver, breaks the updated group, and asks for a promotion. Once meanwhile returns the driver continues, and refuses
// the promotion with one of the reasons. No stable group changes.
func (w *workload) suspend(meanwhile func(stopped time.Time), reasons ...pb.ErrorReason) {
	w.t.Helper()
	before, canary, stopped := w.stablePods(), w.context().GetCanaryWorkload(), time.Now()
	w.driver.Suspend()
	w.patchPods(canary, map[string]any{cluster.AnnotationBehavior: cluster.BehaviorNeverReady}, 0)
	refused := make(chan error)
	go func() {
		_, err := w.tryFinalize("r1", promote, nil)
		refused <- err
	}()
	meanwhile(stopped)
	w.driver.Resume()
	err := <-refused
	assert.True(w.t, err != nil && slices.Contains(reasons, plugin.Reason(err)), "a promotion by what the driver knew before: %v", err)
	w.sameGroups(before)
}

// end heals the updated group, and completes the release.
func (w *workload) end() {
	w.t.Helper()
	w.patchPods(w.context().GetCanaryWorkload(), heal, 0)
	w.awaitState(pb.State_STATE_READY)
	w.upgrade("r1", 1)
	w.finalize("r1", promote)
	w.mustRun("v2")
	w.mustBeIdle()
}
