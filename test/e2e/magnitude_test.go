// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

const (
	million = 1_000_000
	// maxGrowth is how much more memory the driver may take for a million groups without pods, in bytes. One look at them took 344 MB when each
	// was an object.
	maxGrowth = 30 << 20
)

// TestMillionReplicas: replicas of which no pod exists cost the driver nothing, adopted or not, and during releases. The API server
// refuses LWS's StatefulSets of that size: the StatefulSet controller itself would make an object of each replica.
//
// Proves: A million replicas without pods cost the driver no memory.
func TestMillionReplicas(t *testing.T) {
	t.Parallel()
	c := cluster.Shared(t)
	e := &env{t: t, cluster: c, namespace: c.Namespace(t)} // the observer's rules expect LWS to create the groups
	e.kube, e.lws, e.dynamic = suite.Clients(c)
	e.driver = driver.Start(t, driver.Kubeconfig(t, c), e.namespace)
	w := e.deploy(model("model", 2, 2))
	w.context()
	before := e.driver.PeakMemory()
	check := func(when string) {
		t.Helper()
		grown := e.driver.PeakMemory() - before
		t.Logf("%s: %d kB more than %d kB", when, grown>>10, before>>10)
		if grown > maxGrowth {
			t.Fatalf("%s the driver takes %d MB more", when, grown>>20)
		}
	}
	w.refuseStatefulSetsUnless("object.spec.replicas <= 10")
	w.edit(func(o *lws.LeaderWorkerSet) { o.Spec.Replicas = ptr.To[int32](million) })
	t.Cleanup(func() { // LWS must not apply the replicas once the policy is deleted
		w.editNamed(w.name, func(o *lws.LeaderWorkerSet) { o.Spec.Replicas = ptr.To[int32](2) })
	})
	w.await("the driver observes the replicas", func(c *pb.BatchContext) bool { return c.GetReplicas() == million })
	for range 20 {
		if c := w.context(); len(c.GetGroups()) != 102 || c.GetGroupsOmitted() != million-102 || c.GetTotal() != 2 {
			t.Fatalf("%d rows, %d omitted, %d groups exist", len(c.GetGroups()), c.GetGroupsOmitted(), c.GetTotal())
		}
	}
	check("unadopted")

	if _, err := w.driver.Adopt(t.Context(), &pb.AdoptRequest{Workload: w.ref()}); err != nil {
		t.Fatal(err)
	}
	w.edit(image("v2"))
	_, err := w.driver.Plan(t.Context(), &pb.PlanRequest{Workload: w.ref(), Policy: policy("1")})
	if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "at most 500 groups") {
		t.Errorf("Plan: %v", err)
	}
	w.initialize("r1", policy("1", "2"))
	if c := w.upgrade("r1", 0).GetContext(); c.GetState() != pb.State_STATE_READY || c.GetUpdatedReady() != 1 {
		t.Errorf("canary: %s", summary(c))
	}
	check("in a canary release")
	w.finalize("r1", rollback)

	w.initialize("r2", &pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: []string{"1", "2"}})
	if _, err := w.tryUpgrade("r2", 0, nil); err != nil {
		t.Fatal(err)
	}
	w.await("the last group is awaited", func(c *pb.BatchContext) bool {
		return strings.Contains(c.GetMessage(), fmt.Sprintf("0 of 1 groups ready; group %d: pod model-%[1]d: has not been created yet", million-1))
	})
	if _, err := w.driver.Finalize(t.Context(), &pb.FinalizeRequest{Workload: w.ref(), ReleaseId: "r2", Intent: rollback, Force: true}); err != nil {
		t.Fatal(err)
	}
	w.awaitState(pb.State_STATE_ROLLING_BACK)
	check("in a release in place")

	w.edit(func(o *lws.LeaderWorkerSet) { o.Spec.Replicas = ptr.To[int32](2) })
	w.awaitState(pb.State_STATE_ROLLED_BACK)
	w.eventually("its groups are as before", func(ctx context.Context) error {
		c, err := w.tryContext(ctx)
		if err == nil && (c.GetStableReady() != 2 || len(c.GetGroups()) != 2 || c.GetGroupsOmitted() != 0) {
			err = fmt.Errorf("%s", show(c))
		}
		return err
	})
	check("scaled down")
}

// summary is show without groups.
func summary(c *pb.BatchContext) string {
	c.Groups = nil
	return show(c)
}
