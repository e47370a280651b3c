// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	"github.com/lockstep-rollouts/lockstep/plugin/rollout"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// resourcePlugin has the calls by which Argo Rollouts proposes to release the workload of a RolloutPlugin (plugin/rollout/README.md). It is
// all that such a plugin needs beside its configuration and its wire.
type resourcePlugin struct{ driver rollout.Driver }

// rolloutPlugin is what the adapter reads of a RolloutPlugin. A call gets the status that the call before it has left in the API server.
type rolloutPlugin struct {
	generation int
	status     struct {
		observedGeneration, restartCount int
		currentRevision, updatedRevision string
	}
}

// resourceStatus is what the controller makes the status of.
type resourceStatus struct {
	updatedReplicas                  int32
	ready                            bool
	currentRevision, updatedRevision string
}

func (p resourcePlugin) target(r rolloutPlugin) rollout.Target {
	s := r.status
	return rollout.NewTarget(p.driver, rollout.Facts{
		Namespace: "ns", Name: "ro", UID: "0123456789abcdef", Owner: "argo-rollouts/ns/ro", Retry: "set status.restart",
		Number: fmt.Sprintf("%d-%d", r.generation, s.restartCount), Current: s.observedGeneration == r.generation,
		Hash: s.updatedRevision, Stable: s.currentRevision, Wanted: s.updatedRevision, Seen: s.updatedRevision,
	}, &rollout.Config{Workload: "w", Policy: &pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: []string{"25%", "100%"}}})
}

// named reports whether the stored status names the workload's template. The controller may have observed another one than the status
// that it passes, and the template may have changed since.
func (p resourcePlugin) named(ctx context.Context, r rolloutPlugin) (bool, error) {
	c, err := p.target(r).Look(ctx)
	return err == nil && r.status.updatedRevision != "" && r.status.updatedRevision == c.GetTemplateRevision(), err
}

// GetResourceStatus reports the revisions and groups.
func (p resourcePlugin) GetResourceStatus(ctx context.Context, r rolloutPlugin) (resourceStatus, error) {
	c, err := p.target(r).Look(ctx)
	return resourceStatus{
		updatedReplicas: c.GetUpdated(), ready: c.GetUpdatedReady()+c.GetStableReady() == c.GetTotal(),
		currentRevision: c.GetStableRevision(), updatedRevision: c.GetTemplateRevision(),
	}, err
}

// SetWeight updates a share of the groups, and begins the release if none has begun.
func (p resourcePlugin) SetWeight(ctx context.Context, r rolloutPlugin, weight int) error {
	_, err := p.VerifyWeight(ctx, r, weight)
	return err
}

// VerifyWeight reports whether the share is updated. Another template than the stored one is no error: after one, the controller stores
// no status, and the template of the next call would be wrong, too.
func (p resourcePlugin) VerifyWeight(ctx context.Context, r rolloutPlugin, weight int) (bool, error) {
	named, err := p.named(ctx, r)
	if err != nil || !named {
		return false, err
	}
	out, err := p.target(r).Run(ctx, rollout.Step{Upgrade: fmt.Sprintf("%d%%", weight)}, 0)
	if err == nil && out.Done == converge.Failed {
		err = errors.New(out.Message)
	}
	return out.Done == converge.Reached, err
}

// PromoteFull promotes the release. Another template is an error here: without one, the controller promotes that template next.
func (p resourcePlugin) PromoteFull(ctx context.Context, r rolloutPlugin) error {
	named, err := p.named(ctx, r)
	if err != nil {
		return err
	}
	if !named {
		return fmt.Errorf("LeaderWorkerSet w has another template than status.updatedRevision %q: set promoteFull again", r.status.updatedRevision)
	}
	out, err := p.target(r).Run(ctx, rollout.Step{Promote: true}, 0)
	if err == nil && out.Done == converge.Failed {
		err = errors.New(out.Message)
	}
	return err
}

// Abort rolls the release back.
func (p resourcePlugin) Abort(ctx context.Context, r rolloutPlugin) error {
	t := p.target(r)
	t.Facts.Abort = true
	_, err := rollout.ReconcileEndNow(ctx, t)
	return err
}

// A resource plugin is an adapter: the calls that its controller makes release, abort, begin again and promote. A call whose status
// does not name the workload's template moves no group.
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

	r := rolloutPlugin{generation: 2}
	// observe stores a status, as the controller does at the end of a reconciliation.
	observe := func(updated int32) {
		t.Helper()
		s, err := p.GetResourceStatus(ctx, r)
		if err != nil || s.updatedReplicas != updated || !s.ready {
			t.Fatalf("got %+v, %v, want %d updated groups, all ready", s, err, updated)
		}
		r.status.observedGeneration, r.status.currentRevision, r.status.updatedRevision = r.generation, s.currentRevision, s.updatedRevision
	}
	weight := func(percent int, want bool) {
		t.Helper()
		if err := p.SetWeight(ctx, r, percent); err != nil {
			t.Fatal(err)
		}
		if got, err := p.VerifyWeight(ctx, r, percent); err != nil || got != want {
			t.Fatalf("weight %d is verified: %v, %v, want %v", percent, got, err, want)
		}
	}

	weight(100, false) // No status is stored yet.
	observe(0)
	weight(25, true)
	observe(1)
	if err := p.Abort(ctx, r); err != nil {
		t.Fatal(err)
	}
	observe(0)
	r.status.restartCount++
	weight(100, true)
	observe(4)

	fake.SetWorkload("ns", "w", 4, "t3")
	weight(100, false)
	if err := p.PromoteFull(ctx, r); err == nil {
		t.Error("a promotion requested for another template succeeds")
	}
	observe(4) // Still those of t2: the release of t3 has not begun.
	weight(25, true)
	observe(1)
	if err := p.PromoteFull(ctx, r); err != nil {
		t.Fatal(err)
	}
	observe(4)
	if r.status.currentRevision != "t3" {
		t.Errorf("the groups serve %s", r.status.currentRevision)
	}

	fake.SetWorkload("ns", "w", 4, "") // LWS has not recorded the template yet.
	r = rolloutPlugin{}                // The RolloutPlugin was created again.
	weight(25, false)
}
