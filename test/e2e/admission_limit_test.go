// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// A server with --max-groups-in-flight 2 starts a third group once another is ready or given up, also after a restart. An abort does
// not wait. It is not parallel: tests beside it have drivers for all namespaces, which have no limit.
//
// Proves (test): Several servers: one acts, another takes over; the limit of groups in flight.
func TestAdmission(t *testing.T) {
	e := newEnvIn(t, cluster.Shared(t))
	e.driver = driver.Prepare(t, driver.Kubeconfig(t, e.cluster), e.namespace)
	e.driver.Args = []string{"--max-groups-in-flight", "2"}
	e.driver.Begin()
	e.driver.AwaitSync()
	blocked, next, last := e.adopt(model("blocked", 2, 2)), e.adopt(model("next", 2, 2)), e.adopt(model("last", 2, 2))
	reason := func(want string) func(*pb.BatchContext) bool {
		return func(c *pb.BatchContext) bool { return c.GetReason() == want }
	}

	blocked.edit(image("v2"), annotated(cluster.AnnotationBehavior, cluster.BehaviorImagePull))
	blocked.initialize("r1", policy("100%"))
	if _, err := blocked.tryUpgrade("r1", 0, nil); err != nil {
		t.Fatal(err)
	}
	blocked.await("two groups are in flight", func(c *pb.BatchContext) bool { return c.GetReason() == "GroupsNotReady" && c.GetUpdated() == 2 })
	for _, w := range []struct {
		*workload
		policy *pb.ReleasePolicy
	}{{next, policy("100%")}, {last, inPlace("100%")}} {
		w.edit(image("v2"))
		w.initialize("r1", w.policy)
		if _, err := w.tryUpgrade("r1", 0, nil); err != nil {
			t.Fatal(err)
		}
		w.await("it waits for admission", reason("WaitingForAdmission"))
	}
	e.driver.Kill()
	e.driver.Restart()
	for _, w := range []*workload{next, last} {
		w.await("it still waits for admission", reason("WaitingForAdmission"))
	}
	if n := next.context().GetTotal(); n != 2 {
		t.Errorf("next has %d groups before admission, want its own 2", n)
	}

	last.finalize("r1", rollback)
	last.mustBeIdle()
	blocked.finalize("r1", rollback)
	next.await("its turn has come", func(c *pb.BatchContext) bool { return c.GetState() == pb.State_STATE_READY })
	next.finalize("r1", promote)
	next.mustBeIdle()
}
