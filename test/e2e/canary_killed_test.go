// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

const (
	completed  = pb.State_STATE_COMPLETED
	rolledBack = pb.State_STATE_ROLLED_BACK
)

// The driver is killed and restarted, and no host repeats its call. Where the host had requested the end, the driver reaches it; otherwise
// the host continues the release. TestStylesKilledAtEveryWrite has the other moments.
//
// Proves (test, upgrade-in-flight, partly-promoted, rollback-requested, template-changed): SPEC rule 2: a driver that restarts continues
// from the cluster.
func TestCanaryKilled(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		reach func(w *workload)
		// end is the state that the release reaches by itself; UNSPECIFIED: the host continues it.
		end pb.State
	}{
		{"upgrade-in-flight", func(w *workload) {
			w.initialize("r1", quarters())
			go func() { _, _ = w.tryUpgrade("r1", 2, nil) }()
		}, 0},
		{"template-changed", func(w *workload) {
			w.initialize("r1", quarters())
			w.upgrade("r1", 1)
			w.edit(image("v3"))
		}, 0},
		{"partly-promoted", func(w *workload) {
			w.initialize("r1", quarters())
			w.upgrade("r1", 2)
			w.promoteUntil("r1", 2)
		}, completed},
		{"rollback-requested", func(w *workload) {
			w.initialize("r1", quarters())
			w.upgrade("r1", 1)
			w.startFinalize("r1", rollback)
		}, rolledBack},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newEnv(t).adopt(model("model", 4, 2, annotated(cluster.AnnotationStartup, "300ms")))
			before := w.stablePods()
			w.edit(image("v2"))
			test.reach(w)
			w.driver.Kill()
			if test.end == 0 {
				w.sameGroups(before)
			}
			w.driver.Restart()
			if test.end != 0 {
				w.awaitState(test.end)
			} else {
				w.resume("r1")
			}
			w.mustBeIdle()
			if test.end == rolledBack {
				w.sameGroups(before)
			}
		})
	}
}

// resume promotes a release through its remaining batches, as a host does that finds it after a restart.
func (w *workload) resume(id string) {
	w.t.Helper()
	if _, err := w.tryInitialize(id, quarters()); err != nil {
		w.t.Fatal(err)
	}
	w.await("the release is settled", func(c *pb.BatchContext) bool {
		return c.GetState() == pb.State_STATE_HOLDING || c.GetState() == pb.State_STATE_READY
	})
	for b := range int32(3) {
		if c := w.upgrade(id, b).GetContext(); c.GetState() != pb.State_STATE_READY {
			w.t.Fatalf("batch %d: %s", b, show(c))
		}
	}
	w.finalize(id, promote)
	want := w.get().Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers[0].Image
	for _, p := range w.stablePods() {
		if got := p.Spec.Containers[0].Image; got != want {
			w.t.Errorf("pod %s runs %s, want %s", p.Name, got, want)
		}
	}
}

// startBatch requests a batch without waiting for it.
func (w *workload) startBatch(id string, batch int32) {
	w.t.Helper()
	if _, err := w.tryUpgrade(id, batch, nil); err != nil {
		w.t.Fatal(err)
	}
}

// startFinalize requests the end of a release without waiting for it.
func (w *workload) startFinalize(id string, intent pb.FinalizeIntent) {
	w.t.Helper()
	if _, err := w.tryFinalize(id, intent, nil); err != nil {
		w.t.Fatal(err)
	}
}

// errNotYet is the error of conditions without further details.
var errNotYet = errors.New("not yet")

func isNotYet(err error) bool { return errors.Is(err, errNotYet) }

// record returns the release record in the cluster.
func (w *workload) record() *record { return recordOf(w.get()) }

// awaitObject waits for a condition on the cluster's objects rather than the driver's answers.
func (w *workload) awaitObject(what string, check func() bool) {
	w.t.Helper()
	w.eventually(what, func(context.Context) error {
		if !check() {
			return fmt.Errorf("not yet: %s", asJSON(w.record()))
		}
		return nil
	})
}
