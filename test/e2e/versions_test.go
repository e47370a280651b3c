// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	stored "github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// newer prepares a driver with a higher rendering version.
func (e *env) newer() *driver.Driver {
	e.t.Helper()
	d := driver.Prepare(e.t, driver.Kubeconfig(e.t, e.cluster), e.namespace)
	d.Binary = driver.NewerBinary
	return d
}

// mustRender fails unless the record has a rendering version.
func (w *workload) mustRender(version int) {
	w.t.Helper()
	value, want := w.get().Annotations[recordAnnotation], fmt.Sprintf(`"rendering":%d}`, version)
	assert.Contains(w.t, value, want, "the record lacks %s: %s", want, value)
}

// mustLeave fails unless a driver leaves the release to the newer one.
func (w *workload) mustLeave() {
	w.t.Helper()
	c := w.awaitState(pb.State_STATE_FAILED)
	assert.True(w.t, c.GetReason() == "NewerDriver" && strings.Contains(c.GetMessage(), "rendering version 1000") && strings.Contains(c.GetMessage(), "lockstep abort"),
		"%s: %s", c.GetReason(), c.GetMessage())
	_, err := w.tryUpgrade("r1", 2, nil)
	mustFail(w.t, err, pb.ErrorReason_ERROR_REASON_NEWER_DRIVER, "run that driver", "lockstep abort")
	_, err = w.tryFinalize("r1", promote, nil)
	mustFail(w.t, err, pb.ErrorReason_ERROR_REASON_NEWER_DRIVER)
}

// A release that an older driver has begun is taken over and promoted by a newer one. The older one, which runs on, leaves
// it alone from the newer one's first write on.
//
// Proves: The driver is upgraded, or downgraded, in mid-release: a newer version's release is only rolled back.
func TestUpgradeInMidRelease(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]*pb.ReleasePolicy{"canary": quarters(), "partition": inPlace("25%", "50%", "100%")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			older := newEnv(t).adopt(model("model", 4, 2))
			older.edit(image("v2"))
			older.initialize("r1", p)
			older.upgrade("r1", 0)
			older.mustRender(stored.Rendering())

			d := older.newer()
			d.Begin()
			d.AwaitSync()
			newer := older.withDriver(d)
			newer.awaitState(pb.State_STATE_READY)
			older.mustRender(stored.Rendering()) // it has had nothing to write
			c := newer.upgrade("r1", 1).GetContext()
			assert.True(t, c.GetState() == pb.State_STATE_READY && c.GetUpdatedReady() == 2, "batch 1: %s", show(c))
			newer.mustRender(1000)
			older.mustLeave()
			newer.upgrade("r1", 2)
			newer.finalize("r1", promote)
			newer.mustRun("v2")
			newer.mustBeIdle()
			older.awaitState(completed) // a release that is over is not left to the newer one
		})
	}
}

// An older driver neither carries on nor repairs what a newer one has begun, and rolls it back on request. The newer one
// then releases again.
//
// Proves: The driver is upgraded, or downgraded, in mid-release: a newer version's release is only rolled back.
func TestDowngradeInMidRelease(t *testing.T) {
	t.Parallel()
	e := newEnvIn(t, cluster.Shared(t))
	d := e.newer()
	d.Begin()
	d.AwaitSync()
	e.driver = d
	newer := e.adopt(model("model", 4, 2))
	before := newer.stablePods()
	newer.edit(image("v2"))
	newer.initialize("r1", quarters())
	canary := newer.upgrade("r1", 0).GetContext().GetCanaryWorkload()
	newer.mustRender(1000)
	d.Stop()

	// The older driver would render the canary differently.
	newer.editNamed(canary, annotated("rendered-by", "newer"))
	e.driver = driver.Start(t, driver.Kubeconfig(t, e.cluster), e.namespace)
	older := newer.withDriver(e.driver)
	writes := older.ownWrites()
	older.mustLeave()
	if now := older.ownWrites(); !slices.Equal(now, writes) {
		t.Errorf("the older driver writes: %v", now[len(writes):])
	}
	older.finalize("r1", rollback)
	older.mustBeIdle()
	older.mustRun("v1")
	older.sameGroups(before)
	older.mustRender(1000)
	e.driver.Stop()

	d.Restart()
	newer.initialize("r2", quarters())
	for batch := range int32(3) {
		newer.upgrade("r2", batch)
	}
	newer.finalize("r2", promote)
	newer.mustRun("v2")
	newer.mustBeIdle()
}
