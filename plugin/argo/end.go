// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/status"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// ReconcileEnd decides what the host's own commands mean for the workload: abort, promotion in full, the end of the last step, and the return
// to an older template. Steps are not called for these, or once only. Wait means that no action is due.
//
// It ends releases of this Rollout only, and begins one only if the Rollout was promoted in full.
func (t Target) ReconcileEnd(c *pb.BatchContext) Move {
	if t.Facts.Rival != "" && !plugin.InFlight(c) {
		return waiting("Rollout %s releases %s", t.Facts.Rival, plugin.ObjectOf(t.Ref))
	}
	if t.undone(c) && (t.Facts.Promoted() || t.promotedInFull(c)) {
		return t.undo(c.GetTemplateRevision()) // no step does it
	}
	return callOrWait(converge.Next(t.endGoal(c), c))
}

// whyAborted is the message of a rollback by an abort of the Rollout. A step that runs after it is one of a retry.
const whyAborted = "the Rollout was aborted"

// endGoal returns the goal of the host's own commands.
func (t Target) endGoal(c *pb.BatchContext) converge.Goal {
	f := t.Facts
	if !plugin.InFlight(c) {
		g := t.goal(converge.Promote, c)
		if t.promotedInFull(c) {
			g.Why = "the Rollout was promoted in full"
			return g
		}
		return t.registration(g, c)
	}
	_, own := Ours(f, c)
	id, mine := t.mine(c)
	g := t.goal(converge.Hold, c)
	switch {
	case !own, c.GetState() == pb.State_STATE_PROMOTING && !f.aborted():
		// Only an abort takes a promotion back.
	case f.Abort && (mine || f.Current):
		// A status that lags may still have the abort of an earlier template.
		g.Kind, g.Why = converge.RollBack, whyAborted
	case !f.Current || f.Hash == "":
		g.Why = "Argo has not observed the Rollout's template"
	case !mine:
		g.Kind, g.Why = converge.RollBack, fmt.Sprintf("the Rollout's template is no longer that of release %s", c.GetReleaseId())
	case f.asked():
		g.Kind, g.Revision, g.Why = converge.Promote, id.Revision, "the Rollout was promoted"
	}
	return g
}

// registration makes the Rollout the owner of a workload at rest, by a release of nothing: so a Rollout that was deleted while no host
// watched can be told from one that never existed. A workload with something to release gets its owner with that release.
func (t Target) registration(g converge.Goal, c *pb.BatchContext) converge.Goal {
	id := ID{Rollout: t.Facts.short(), Number: t.Facts.Number, Hash: adopted, Revision: c.GetTemplateRevision(), Attempt: 1}
	if g.Kind, g.Release = converge.Hold, ""; c.GetOwner() != g.Owner {
		g.Release = id.String()
	}
	g.Policy = &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"100%"}}
	g.Why = fmt.Sprintf("Rollout %s/%s releases it", t.Facts.Namespace, t.Facts.Name)
	return g
}

// promotedInFull reports whether the Rollout's template was promoted without a step of a release: by promote --full, by skipping all
// steps, or by a rollbackWindow.
//
// A release of this template that was rolled back stays so: an abort may have come after the promotion.
func (t Target) promotedInFull(c *pb.BatchContext) bool {
	_, mine := t.mine(c)
	return !mine && t.Facts.asked() && t.Config.Unfit == nil
}

// undone reports whether the Rollout was returned to an older template, which the workload does not have: the workload still has the one
// from which the Rollout's template was last derived, so it was not edited.
func (t Target) undone(c *pb.BatchContext) bool {
	f, template := t.Facts, c.GetTemplateRevision()
	return !plugin.InFlight(c) && f.Current && !f.aborted() && f.Stable != "" && template != "" && f.Wanted != "" &&
		f.Wanted != template && f.Noted.seen == template && c.GetState() != pb.State_STATE_UNMANAGED &&
		t.Driver.Has(pb.Capability_CAPABILITY_UNDO)
}

// pending reports whether a promotion in full is not recorded by the driver yet, but will be.
func (t Target) pending(c *pb.BatchContext) bool {
	template := c.GetTemplateRevision()
	return !plugin.InFlight(c) && t.Facts.Rival == "" && t.promotedInFull(c) && (template == "" || template == t.Facts.Wanted && plugin.Waits(c))
}

// ReconcileEndNow does what ReconcileEnd decides until nothing is due, or ctx ends. The driver then completes the release by itself. An error means
// that it must be called again: it does not wait for a driver that can't be reached, because its callers occupy workers of Argo's controller.
func ReconcileEndNow(ctx context.Context, t Target) (*pb.BatchContext, error) {
	for {
		c, err := t.Look(ctx)
		if plugin.Reason(err) == pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND {
			return &pb.BatchContext{Message: status.Convert(err).Message()}, nil
		}
		if err != nil {
			return c, err
		}
		pause := 20 * time.Millisecond
		switch m := t.ReconcileEnd(c); {
		case m.Outcome != converge.Wait:
			_, err = t.Call(ctx, m.Request)
			switch finalized := plugin.Reason(err) == pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED; {
			case finalized && t.Facts.Abort:
				return t.Look(ctx) // a promotion that can't be taken back: Argo is to go on to Abort, which says it
			case finalized, err != nil && !converge.Outdated(err):
				return c, err
			}
		case t.pending(c):
			// A promotion in full waits for LWS to record the template. Until then only the Rollout knows of it.
			pause = retryInterval
		default:
			return c, nil
		}
		select {
		case <-ctx.Done():
			if err == nil {
				err = ctx.Err()
			}
			return c, err
		case <-time.After(pause):
		}
	}
}
