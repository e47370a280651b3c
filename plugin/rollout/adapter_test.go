// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	"github.com/lockstep-rollouts/lockstep/plugin/rollout"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// resourcePlugin adapts the calls that Argo Rollouts proposes for plugins of its resource RolloutPlugin (docs/rolloutplugin.md). It is
// all that such a plugin needs beside reading the resource and its wire.
type resourcePlugin struct{ driver rollout.Driver }

// resource is what the plugin needs of a RolloutPlugin.
type resource struct {
	generation int
	restarts   int
	// current and updated are the revisions that GetResourceStatus returned.
	current, updated string
}

func (p resourcePlugin) target(r resource) rollout.Target {
	return rollout.NewTarget(p.driver, rollout.Facts{
		Namespace: "ns", Name: "ro", UID: "0123456789abcdef", Owner: "argo-rollouts/ns/ro", Retry: "kubectl argo rollouts restart ro",
		Number: fmt.Sprintf("%d-%d", r.generation, r.restarts), Hash: r.updated, Stable: r.current, Current: true, Wanted: r.updated, Seen: r.updated,
	}, &rollout.Config{Workload: "w", Policy: &pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: []string{"25%", "100%"}}})
}

// GetResourceStatus reports the revisions and groups.
func (p resourcePlugin) GetResourceStatus(ctx context.Context, r *resource) (*pb.BatchContext, error) {
	c, err := p.target(*r).Look(ctx)
	r.current, r.updated = c.GetStableRevision(), c.GetTemplateRevision()
	return c, err
}

// SetWeight updates a share of the groups, and begins the release if none has begun.
func (p resourcePlugin) SetWeight(ctx context.Context, r resource, weight int) (rollout.Outcome, error) {
	return p.target(r).Run(ctx, rollout.Step{Upgrade: fmt.Sprintf("%d%%", weight)}, 0)
}

// PromoteFull promotes the release.
func (p resourcePlugin) PromoteFull(ctx context.Context, r resource) (rollout.Outcome, error) {
	return p.target(r).Run(ctx, rollout.Step{Promote: true}, 0)
}

// Abort rolls the release back.
func (p resourcePlugin) Abort(ctx context.Context, r resource) (*pb.BatchContext, error) {
	t := p.target(r)
	t.Facts.Abort = true
	return rollout.SettleNow(ctx, t)
}

// A resource plugin is an adapter: the calls that its controller makes release, abort, begin again and promote.
func TestResourcePlugin(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	fake := plugintest.NewFakeDriver()
	p := resourcePlugin{plugintest.Connect(t, fake, nil)}
	fake.SetWorkload("ns", "w", 4, "t1")
	if _, err := p.driver.Adopt(ctx, &pb.AdoptRequest{Workload: &pb.WorkloadRef{Namespace: "ns", Name: "w"}}); err != nil {
		t.Fatal(err)
	}
	fake.SetWorkload("ns", "w", 4, "t2")

	r := resource{generation: 2}
	status := func(state pb.State, planned int32) {
		t.Helper()
		c, err := p.GetResourceStatus(ctx, &r)
		if err != nil || c.GetState() != state || c.GetPlanned() != planned {
			t.Fatalf("got %v with %d groups, %v, want %v with %d", c.GetState(), c.GetPlanned(), err, state, planned)
		}
	}
	step := func(out rollout.Outcome, err error) {
		t.Helper()
		if err != nil || out.Done != rollout.ActSucceed {
			t.Fatalf("got %+v, %v", out, err)
		}
	}
	status(pb.State_STATE_HOLDING, 0)
	step(p.SetWeight(ctx, r, 25))
	status(pb.State_STATE_READY, 1)
	if _, err := p.Abort(ctx, r); err != nil {
		t.Fatal(err)
	}
	status(pb.State_STATE_ROLLED_BACK, 0)
	r.restarts++
	step(p.SetWeight(ctx, r, 100))
	status(pb.State_STATE_READY, 4)
	step(p.PromoteFull(ctx, r))
	status(pb.State_STATE_COMPLETED, 0)
	if r.current != "t2" {
		t.Errorf("the groups serve %s", r.current)
	}
}
