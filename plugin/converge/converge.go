// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package converge decides the driver's next call for a host. A host maps what it shows, a Rollout's status or a partition, to a [Goal]
// with its evidence; [Next] compares the goal with the workload and returns a [Move].
//
// No group leaves its revision without evidence. A release begins, continues and is promoted only for the template revision that the
// goal names, and every request carries that revision, so that the driver refuses it if the template changes meanwhile. A host sets
// [Goal.Revision] from a step or a full promotion of this template only. An object that is absent, re-created, invalid or not yet
// observed is no evidence: its goal is [Hold].
//
// A release that was rolled back does not begin again, unless the host asks for another release.
package converge

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Kind is what a host wants of a workload.
type Kind int

const (
	// Hold moves no group. A release in flight stays as it is.
	Hold Kind = iota
	// Upgrade begins the release, and updates the groups of Goal.Target.
	Upgrade
	// Promote updates all groups, and begins the release if none is in flight.
	Promote
	// RollBack ends the release in flight.
	RollBack
	// Disown ends the release in flight, and returns the workload to its own controller.
	Disown
)

// Goal is what a host wants of a workload, with its evidence.
type Goal struct {
	Kind Kind
	// Workload is required.
	Workload *pb.WorkloadRef
	// Owner is the owner of the host's releases. Required.
	Owner string
	// Release is the id of the release that the goal is about: an own release in flight with another id is replaced. With Hold it
	// is registered at a workload whose groups run their template. Without it nothing begins.
	Release string
	// Policy is that of Release.
	Policy *pb.ReleasePolicy
	// Revision is the evidence: the template revision that the host's step, or the user's full promotion, names. Without it
	// no group leaves its revision. With Disown it is the revision to which a release in flight is promoted; empty rolls it back.
	Revision string
	// Target are the groups of an Upgrade: only its target is read. It is nil if the release only begins, or the groups were requested.
	Target *pb.UpgradeBatchRequest
	// Why is the reason for users, and the message of an end. With Hold it is what the evidence lacks.
	Why string
}

// Outcome is how a workload stands to a goal.
type Outcome int

const (
	// Wait is until the driver or the workload's controller has finished what was requested before.
	Wait Outcome = iota
	// Call makes Move.Request.
	Call
	// Reached is a goal for which nothing is left to request.
	Reached
	// Held is a goal without evidence for the present template.
	Held
	// Foreign is a workload that a release of another owner holds.
	Foreign
	// RolledBack is a release that was rolled back. Only another id begins again.
	RolledBack
	// Failed is a step of a host that ends without its goal: [Next] does not return it.
	Failed
)

// ShortUID returns the part of an object's uid that ids of releases have: with the names around it they fit 63 characters.
func ShortUID(uid string) string {
	plain := strings.ReplaceAll(uid, "-", "")
	return plain[:min(8, len(plain))]
}

// Move is the next step towards a goal.
type Move struct {
	Outcome Outcome
	// Request is a request of AdoptRequest, DisownRequest, InitializeRequest, UpgradeBatchRequest or FinalizeRequest, with Call.
	Request proto.Message
	// Why is for messages and logs.
	Why string
}

// Next returns the move towards a goal. It is the one place that allows a release to begin, continue or end.
func Next(g Goal, c *pb.BatchContext) Move {
	inFlight := plugin.InFlight(c)
	switch {
	case c.GetState() == pb.State_STATE_UNMANAGED && (g.Kind == RollBack || g.Kind == Disown):
		return Move{Outcome: Reached, Why: "the workload is not adopted"}
	case c.GetState() == pb.State_STATE_UNMANAGED:
		return callMove(&pb.AdoptRequest{Workload: g.Workload}, "adopting the workload")
	case inFlight && c.GetOwner() != g.Owner:
		// Whatever the goal, a release of another owner is neither continued nor ended.
		return Move{Outcome: Foreign, Why: fmt.Sprintf("release %s of %q holds %s: finalize it, or wait for its end",
			c.GetReleaseId(), c.GetOwner(), plugin.ObjectOf(g.Workload))}
	case g.Kind == RollBack && inFlight && !RollsBack(c):
		// A rollback takes back a promotion, too, so it comes before the wait for an end.
		return finalizeCall(g, c, pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)
	case g.replaces(c):
		g.Why = fmt.Sprintf("rolling back release %s, which a newer template replaces", c.GetReleaseId())
		return finalizeCall(g, c, pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)
	case plugin.Ending(c):
		return Move{Outcome: Wait, Why: fmt.Sprintf("waiting for the end of release %s: %s", c.GetReleaseId(), c.GetMessage())}
	}
	switch g.Kind {
	case RollBack:
		return Move{Outcome: Reached, Why: c.GetMessage()}
	case Disown:
		return disownRelease(g, c)
	case Hold:
		return registerOwner(g, c)
	case Upgrade, Promote:
	}
	if !inFlight {
		return beginRelease(g, c)
	}
	return advanceRelease(g, c)
}

// beginRelease begins the release of the template that the evidence names.
func beginRelease(g Goal, c *pb.BatchContext) Move {
	switch template := c.GetTemplateRevision(); {
	case template == "":
		return awaitTemplate(g)
	case template != g.Revision:
		return unprovenTemplate(g, c)
	case !plugin.Waits(c):
		// The groups run this template, so a release would move none.
		return Move{Outcome: Reached, Why: c.GetMessage()}
	case g.Release == "":
		return Move{Outcome: Held, Why: g.Why}
	case c.GetReleaseId() == g.Release && c.GetOwner() == g.Owner:
		return Move{Outcome: RolledBack, Why: fmt.Sprintf("release %s was rolled back: %s", c.GetReleaseId(), c.GetMessage())}
	}
	return initializeCall(g, g.Revision, fmt.Sprintf("preparing the release of revision %s of %s", g.Revision, g.Workload.GetName()))
}

// advanceRelease moves the release in flight, while it is that of the evidence.
func advanceRelease(g Goal, c *pb.BatchContext) Move {
	template := c.GetTemplateRevision()
	switch {
	case template != g.Revision:
		return unprovenTemplate(g, c)
	case c.GetUpdateRevision() != template:
		return Move{Outcome: Wait, Why: c.GetMessage()} // the driver starts over with the new template
	case g.Kind == Promote:
		return finalizeCall(g, c, pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE)
	case g.Target == nil:
		return Move{Outcome: Reached, Why: c.GetMessage()}
	}
	return callMove(&pb.UpgradeBatchRequest{
		Workload: g.Workload, ReleaseId: c.GetReleaseId(), UpdateRevision: g.Revision, Target: g.Target.GetTarget(),
	}, g.Why)
}

// disownRelease ends the release in flight, and then the hold, unless that would roll out a template that waits.
func disownRelease(g Goal, c *pb.BatchContext) Move {
	template := c.GetTemplateRevision()
	switch {
	case plugin.InFlight(c) && g.Revision != "" && g.Revision == template && template == c.GetUpdateRevision():
		// Only evidence for exactly the template in flight promotes it.
		return finalizeCall(g, c, pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE)
	case plugin.InFlight(c):
		return finalizeCall(g, c, pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)
	case plugin.Waits(c) && template == "":
		return awaitTemplate(g)
	case plugin.Waits(c):
		return Move{Outcome: Held, Why: fmt.Sprintf("the workload stays under hold: its template (revision %s) waits, and LeaderWorkerSet would roll it "+
			"out at once. Release it, or restore the template of revision %s, and then: lockstep disown %s",
			template, plugin.Serving(c), plugin.InCommands(g.Workload))}
	}
	return callMove(&pb.DisownRequest{Workload: g.Workload, TemplateRevision: template}, "disowning the workload: "+g.Why)
}

// awaitTemplate is the move while the revision of the template is not known.
func awaitTemplate(g Goal) Move {
	return Move{Outcome: Wait, Why: "waiting for the LeaderWorkerSet controller to record the template of " + g.Workload.GetName()}
}

// registerOwner begins a release of the template that the groups run, which moves nothing, and names the owner and the release.
func registerOwner(g Goal, c *pb.BatchContext) Move {
	template := c.GetTemplateRevision()
	if g.Release == "" || plugin.InFlight(c) || template == "" || plugin.Waits(c) {
		return Move{Outcome: Held, Why: g.Why}
	}
	return initializeCall(g, template, g.Why)
}

// unprovenTemplate is the move for a template that the evidence does not name.
func unprovenTemplate(g Goal, c *pb.BatchContext) Move {
	if g.Revision == "" {
		return Move{Outcome: Held, Why: g.Why}
	}
	return Move{Outcome: Held, Why: fmt.Sprintf("the template of %s is now at revision %s, and only revision %s was requested",
		g.Workload.GetName(), c.GetTemplateRevision(), g.Revision)}
}

// replaces reports whether the goal is about another release than the one in flight, which is not ending. A promotion that has failed is
// rolled back.
func (g Goal) replaces(c *pb.BatchContext) bool {
	return (g.Kind == Upgrade || g.Kind == Promote) && plugin.InFlight(c) && c.GetReleaseId() != g.Release &&
		c.GetState() != pb.State_STATE_PROMOTING && !RollsBack(c)
}

// RollsBack reports whether the release is being rolled back, also while that has failed, or was.
func RollsBack(c *pb.BatchContext) bool {
	state := c.GetState()
	return state == pb.State_STATE_ROLLING_BACK || state == pb.State_STATE_ROLLED_BACK || c.GetIntent() == pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK
}

func initializeCall(g Goal, revision, why string) Move {
	return callMove(&pb.InitializeRequest{
		Workload: g.Workload, ReleaseId: g.Release, Owner: g.Owner, Policy: g.Policy, TemplateRevision: revision,
	}, why)
}

func finalizeCall(g Goal, c *pb.BatchContext, intent pb.FinalizeIntent) Move {
	r := &pb.FinalizeRequest{Workload: g.Workload, ReleaseId: c.GetReleaseId(), Intent: intent, Message: g.Why}
	// A rollback is to the stable revision, whatever the template is by now.
	if intent == pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE {
		r.UpdateRevision = g.Revision
	}
	return callMove(r, g.Why)
}

func callMove(r proto.Message, why string) Move { return Move{Outcome: Call, Request: r, Why: why} }

// Driver makes the call of a request of the contract, as plugin.Client does. It returns the state of the workload in the response, nil if
// the response has none. Errors have an ErrorReason.
type Driver interface {
	Call(ctx context.Context, request proto.Message) (*pb.BatchContext, error)
}

var _ Driver = (*plugin.Client)(nil)

// CallTimeout bounds one call of the driver. No call waits for the cluster.
const CallTimeout = 15 * time.Second

// CallDriver makes a call that ends, although the driver may hang.
func CallDriver(ctx context.Context, driver Driver, request proto.Message) (*pb.BatchContext, error) {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	return driver.Call(ctx, request)
}

// Outdated reports whether the release is no longer what the call assumed, so that the next one is decided anew.
func Outdated(err error) bool {
	switch plugin.Reason(err) { // All others need a user, or are retryable.
	case pb.ErrorReason_ERROR_REASON_REVISION_CHANGED, pb.ErrorReason_ERROR_REASON_CONFLICT,
		pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED, pb.ErrorReason_ERROR_REASON_RELEASE_NOT_FOUND:
		return true
	default:
		return false
	}
}

// Retryable reports whether the same call may succeed later without intervention. [CallDriver] has a deadline, so a driver that
// hangs counts as unavailable.
func Retryable(err error) bool {
	return plugin.Retryable(err) || status.Code(err) == codes.DeadlineExceeded
}
