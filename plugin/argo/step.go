// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Move is the next thing to do for a Rollout. Besides the requests of package converge it has UndoRequest, SetHeaderRouteRequest,
// SetMirrorRequest and SetWeightRequest. Reached and Failed end a step.
type Move = converge.Move

func waiting(format string, args ...any) Move {
	return Move{Outcome: converge.Wait, Why: fmt.Sprintf(format, args...)}
}

func fail(format string, args ...any) Move {
	return Move{Outcome: converge.Failed, Why: fmt.Sprintf(format, args...)}
}

func succeed(format string, args ...any) Move {
	return Move{Outcome: converge.Reached, Why: fmt.Sprintf(format, args...)}
}

func callDriver(request proto.Message, format string, args ...any) Move {
	return Move{Outcome: converge.Call, Request: request, Why: fmt.Sprintf(format, args...)}
}

// wasRequested reports whether the driver has accepted a request of a type in this step.
func wasRequested[R proto.Message](r *run) bool {
	return slices.ContainsFunc(r.accepted, func(m proto.Message) bool { _, ok := m.(R); return ok })
}

// next returns the next action for the step, given the state of the workload.
func (r *run) next(c *pb.BatchContext) Move {
	// Argo may call a step at the first deployment, too, before anything serves.
	if r.Facts.Stable == "" {
		return succeed("first deployment: %s runs as it is, nothing to release", r.Config.Workload)
	}
	if r.Facts.Rival != "" {
		return fail("%s is released by Rollout %s, which is older: delete one of the two Rollouts", plugin.ObjectOf(r.Ref), r.Facts.Rival)
	}
	_, mine := r.mine(c)
	inFlight, template := plugin.InFlight(c), c.GetTemplateRevision()
	g := r.goal(converge.Upgrade, c)
	if template != "" && g.Revision != "" && g.Revision != template && (mine || !inFlight) {
		return r.diverged(c)
	}
	if mine && inFlight {
		if m, over := r.judge(c); over {
			return m
		}
	}
	if r.step.Upgrade != "" && !wasRequested[*pb.UpgradeBatchRequest](r) {
		g.Target, g.Why = upgradeTo(c, r.step.Upgrade), "upgrading to "+r.step.Upgrade
	}
	switch m := converge.Next(g, c); m.Outcome {
	case converge.Call:
		// An unfit Rollout begins nothing, but its release in flight must be able to end.
		if _, begins := m.Request.(*pb.InitializeRequest); begins && r.Config.Unfit != nil {
			return fail("%v", r.Config.Unfit)
		}
		return m
	case converge.Foreign:
		return fail("%s, and then: %s", m.Why, r.Facts.Retry)
	case converge.RolledBack:
		return fail("%s outside of this Rollout; to release again: %s", m.Why, r.Facts.Retry)
	case converge.Wait, converge.Held:
		return waiting("%s", m.Why)
	case converge.Reached, converge.Failed:
	}
	switch {
	case inFlight:
		return r.finish(c)
	case mine && c.GetState() == pb.State_STATE_COMPLETED:
		return succeed("promoted: %s", c.GetMessage())
	default:
		return succeed("nothing to release: %s", c.GetMessage())
	}
}

// goal returns the goal of this Rollout's template: its release and revision. A template without a revision is no evidence.
func (t Target) goal(kind converge.Kind, c *pb.BatchContext) converge.Goal {
	g := converge.Goal{
		Kind: kind, Workload: t.Ref, Owner: t.Facts.Owner, Policy: t.Config.Policy, Revision: t.Facts.Wanted,
		Why: fmt.Sprintf("the revision of %s that the template of Rollout %s stands for is not known yet", t.Config.Workload, t.Facts.Name),
	}
	id, mine := t.mine(c)
	if mine && plugin.InFlight(c) {
		g.Release, g.Revision = c.GetReleaseId(), id.Revision
		return g
	}
	attempt := 1
	switch begun := slices.Contains(t.Facts.Begun, c.GetReleaseId()); {
	case mine && begun && c.GetState() == pb.State_STATE_ROLLED_BACK && c.GetEndMessage() != whyAborted:
		attempt = id.Attempt // another client has rolled it back
	case mine:
		attempt = id.Attempt + 1 // a retry
	}
	g.Release = t.Facts.ID(g.Revision, attempt).String()
	return g
}

// mine reports whether the last release is that of this Rollout's template.
func (t Target) mine(c *pb.BatchContext) (ID, bool) {
	id, own := Ours(t.Facts, c)
	return id, own && id.Hash == t.Facts.Hash
}

// Ours reports whether the last release is one of this Rollout. That of a deleted Rollout of the same name counts, too, with an
// id that never matches: this Rollout ends it.
func Ours(f Facts, c *pb.BatchContext) (ID, bool) {
	if c.GetOwner() != f.Owner {
		return ID{}, false
	}
	id, ok := ParseID(c.GetReleaseId())
	if !ok || id.Rollout != f.short() {
		return ID{}, true
	}
	return id, true
}

// diverged decides about a workload whose template is not the one that the Rollout's template stands for: it was edited, or the Rollout
// was undone.
func (r *run) diverged(c *pb.BatchContext) Move {
	template := c.GetTemplateRevision()
	inFlight := plugin.InFlight(c)
	switch {
	case r.Facts.Wanted != template && r.Facts.Noted.seen != template:
		return waiting("%s has a new template (revision %s): the Rollout is about to start over with it", plugin.ObjectOf(r.Ref), template)
	case inFlight:
		g := r.goal(converge.RollBack, c)
		g.Why = fmt.Sprintf("rolling back release %s, whose revision the Rollout no longer asks for", c.GetReleaseId())
		return callOrWait(converge.Next(g, c))
	case !r.Driver.Has(pb.Capability_CAPABILITY_UNDO):
		return fail("the Rollout asks for revision %s of %s, whose template is revision %s, and this driver can't "+
			"restore a template: restore it in Git or with kubectl apply, and then: %s", r.Facts.Wanted, plugin.ObjectOf(r.Ref), template, r.Facts.Retry)
	default:
		return r.undo(template)
	}
}

// undo restores the template of the revision that the Rollout's template stands for. It moves no group.
func (t Target) undo(template string) Move {
	return callDriver(&pb.UndoRequest{Workload: t.Ref, Revision: t.Facts.Wanted, TemplateRevision: template},
		"restoring revision %s of the template of %s, which the Rollout was returned to", t.Facts.Wanted, t.Config.Workload)
}

// upgradeTo returns the target of an upgrade, as a batch of the release if it is one: the Rollout may have other steps by now.
func upgradeTo(c *pb.BatchContext, groups string) *pb.UpgradeBatchRequest {
	if i := slices.IndexFunc(c.GetBatchPlan(), func(b *pb.Batch) bool { return b.GetTarget() == groups }); i >= 0 {
		return &pb.UpgradeBatchRequest{Target: &pb.UpgradeBatchRequest_Batch{Batch: int32(i)}} //nolint:gosec // A handful of batches.
	}
	return &pb.UpgradeBatchRequest{Target: &pb.UpgradeBatchRequest_Groups{Groups: groups}}
}

// callOrWait returns a move that is no answer to the step.
func callOrWait(m Move) Move {
	if m.Outcome != converge.Call {
		m.Outcome = converge.Wait
	}
	return m
}

// judge decides about states of the step's release in which no request follows.
func (r *run) judge(c *pb.BatchContext) (Move, bool) {
	switch c.GetState() { //nolint:exhaustive // In the other states the step continues.
	case pb.State_STATE_ROLLING_BACK, pb.State_STATE_PREPARING:
		return waiting("%s", c.GetMessage()), true
	case pb.State_STATE_PROMOTING:
		return waiting("promoting: %s", c.GetMessage()), true
	case pb.State_STATE_FAILED:
		if r.Config.WaitOnFailure || r.step.Promote && slices.Contains(noGroupFails, c.GetReason()) {
			return waiting("%s: %s", c.GetReason(), c.GetMessage()), true
		}
		return fail("%s: %s", c.GetReason(), c.GetMessage()), true
	}
	return Move{}, false
}

// finish takes the step to its end, once the groups were asked for: it requests routing and promotion, or waits.
func (r *run) finish(c *pb.BatchContext) Move {
	if r.step.Weight != nil && *r.step.Weight > 0 && c.GetState() == pb.State_STATE_HOLDING {
		return fail("weight %d: no group is at the new revision that could take requests; upgrade in this step or an earlier one",
			*r.step.Weight)
	}
	id, revision := c.GetReleaseId(), c.GetUpdateRevision()
	switch {
	case !doneForStep(c):
		return waiting("%s", c.GetMessage())
	case r.step.Headers != nil && !wasRequested[*pb.SetHeaderRouteRequest](r):
		return callDriver(&pb.SetHeaderRouteRequest{
			Workload: r.Ref, ReleaseId: id, UpdateRevision: revision, Name: headerRoute, Matches: *r.step.Headers,
		}, "setting the header route")
	case r.step.Mirror != nil && !wasRequested[*pb.SetMirrorRequest](r):
		return callDriver(&pb.SetMirrorRequest{Workload: r.Ref, ReleaseId: id, UpdateRevision: revision, Percentage: *r.step.Mirror},
			"mirroring %d%% of the requests", *r.step.Mirror)
	case r.step.Weight != nil && !wasRequested[*pb.SetWeightRequest](r):
		return callDriver(&pb.SetWeightRequest{Workload: r.Ref, ReleaseId: id, UpdateRevision: revision, Weight: *r.step.Weight},
			"sending %d%% of the requests to the new revision", *r.step.Weight)
	case r.step.Weight != nil && c.GetTrafficWeight() != *r.step.Weight:
		return waiting("%s", c.GetMessage())
	case r.step.Promote:
		g := r.goal(converge.Promote, c)
		g.Why = "promoting"
		return callOrWait(converge.Next(g, c))
	default:
		return succeed("%s", c.GetMessage())
	}
}

// noGroupFails are the reasons of a promotion that fails although its groups serve: pods take too long to terminate, an autoscaler has removed groups,
// which a user adds again, or the API server refuses a write. Failing the step would abort, and roll those groups back.
var noGroupFails = []string{"CleanupDeadlineExceeded", "StableCapacityReduced", "Forbidden", "Rejected"}

// doneForStep reports whether groups, routes and endpoints are at what was requested.
func doneForStep(c *pb.BatchContext) bool {
	return c.GetState() == pb.State_STATE_READY || c.GetState() == pb.State_STATE_HOLDING
}
