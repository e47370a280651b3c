// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"slices"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Action is a kind of [Move].
type Action int

// The kinds of a [Move]. After ActFail each is one call of the driver.
const (
	ActWait    Action = iota // until the state of the workload has changed
	ActSucceed               // ends the step
	ActFail                  // ends the step
	ActUndo
	ActRollback
	ActInitialize
	ActUpgrade
	ActHeaders
	ActMirror
	ActWeight
	ActPromote
	ActAdopt
	ActRegister
)

// Move is an action with its arguments.
type Move struct {
	Action Action
	// Release is the id of the release.
	Release string
	// Revision is the workload's revision that is to be updated to or restored.
	Revision string
	// Template is the workload's template that ActUndo replaces.
	Template string
	// Why is for messages and logs.
	Why string
}

func wait(format string, args ...any) Move {
	return Move{Action: ActWait, Why: fmt.Sprintf(format, args...)}
}

func fail(format string, args ...any) Move {
	return Move{Action: ActFail, Why: fmt.Sprintf(format, args...)}
}

func succeed(format string, args ...any) Move {
	return Move{Action: ActSucceed, Why: fmt.Sprintf(format, args...)}
}

// stepper decides the next move of one step of a Rollout, from any state of the workload. Its only state is which requests
// the driver has accepted, so that each is sent once per run.
type stepper struct {
	facts  Facts
	config *Config
	step   Step
	// canUndo is set if the driver restores templates.
	canUndo bool

	targetSet, headersSet, mirrorSet, weightSet bool
}

// next returns the next move. It is a function of the context and of the fields above.
func (s *stepper) next(c *pb.BatchContext) Move {
	template := c.GetTemplateRevision()
	switch {
	case s.facts.Stable == "":
		return succeed("first deployment: %s runs as it is, nothing to release", s.config.Workload)
	case s.facts.Rival != "":
		return fail("LeaderWorkerSet %s/%s is released by Rollout %s, which is older: delete one of the two Rollouts",
			s.facts.Namespace, s.config.Workload, s.facts.Rival)
	case template == "":
		return wait("waiting for the LeaderWorkerSet controller to record the template of %s", s.config.Workload)
	}
	id, ours := Ours(s.facts, c)
	mine := ours && id.Hash == s.facts.Hash
	switch {
	case inFlight(c) && !mine:
		return s.replaceRelease(c, ours)
	case s.diverged(template):
		return s.converge(c, template)
	case inFlight(c):
		return s.advance(c, id)
	case mine && c.GetState() == pb.State_STATE_COMPLETED && c.GetUpdateRevision() == template:
		return succeed("promoted: %s", c.GetMessage())
	case mine && c.GetState() == pb.State_STATE_NOTHING_TO_RELEASE && c.GetStableRevision() == template:
		return succeed("nothing to release: %s", c.GetMessage())
	case mine && c.GetState() == pb.State_STATE_ROLLED_BACK && slices.Contains(s.facts.Begun, c.GetReleaseId()):
		return fail("release %s was rolled back outside of this Rollout: %s; to release again: %s", c.GetReleaseId(), c.GetMessage(), s.facts.Retry)
	case mine:
		return s.begin(c, template, id.Attempt+1)
	default:
		return s.begin(c, template, 1)
	}
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

// replaceRelease decides about a release in flight that is not the one of this template.
func (s *stepper) replaceRelease(c *pb.BatchContext, ours bool) Move {
	switch {
	case !ours:
		return fail("LeaderWorkerSet %s/%s is being released by %q (release %s): wait for its end, or end it, and then: %s",
			s.facts.Namespace, s.config.Workload, c.GetOwner(), c.GetReleaseId(), s.facts.Retry)
	default:
		return rollBack(c, fmt.Sprintf("rolling back release %s, which a newer template replaces", c.GetReleaseId()))
	}
}

// rollBack rolls a release back, unless it ends already. A promotion that has failed is rolled back.
func rollBack(c *pb.BatchContext, why string) Move {
	m := Move{Action: ActRollback, Release: c.GetReleaseId(), Why: why}
	if c.GetState() == pb.State_STATE_ROLLING_BACK || c.GetState() == pb.State_STATE_PROMOTING || requested(c, m) {
		return wait("waiting for the end of release %s: %s", c.GetReleaseId(), c.GetMessage())
	}
	return m
}

// diverged reports whether the workload's template is not the one that the Rollout's template stands for.
func (s *stepper) diverged(template string) bool {
	wanted := s.facts.Wanted
	return !s.config.Manual && wanted != "" && wanted != template
}

// converge decides how the workload and the Rollout get the same template again: that of the one that changed last.
func (s *stepper) converge(c *pb.BatchContext, template string) Move {
	wanted := s.facts.Wanted
	switch {
	case s.facts.Seen != template:
		return wait("LeaderWorkerSet %s has a new template (revision %s): the Rollout is about to start over with it",
			s.config.Workload, template)
	case inFlight(c):
		return rollBack(c, "the Rollout asks for an older template")
	case !s.canUndo:
		return fail("the Rollout asks for revision %s of LeaderWorkerSet %s, whose template is revision %s, and this driver can't "+
			"restore a template: restore it in Git or with kubectl apply, and then: %s", wanted, s.config.Workload, template, s.facts.Retry)
	default:
		return Move{
			Action: ActUndo, Revision: wanted, Template: template,
			Why: fmt.Sprintf("restoring revision %s of the template of %s", wanted, s.config.Workload),
		}
	}
}

// begin starts a release.
func (s *stepper) begin(c *pb.BatchContext, template string, attempt int) Move {
	if s.config.Unfit != nil && Serving(c) != template {
		return fail("%v", s.config.Unfit)
	}
	return Move{
		Action: ActInitialize, Release: s.facts.ID(template, attempt).String(),
		Why: fmt.Sprintf("preparing the release of revision %s of %s", template, s.config.Workload),
	}
}

// advance decides the next move within the release in flight of this step.
func (s *stepper) advance(c *pb.BatchContext, id ID) Move {
	switch c.GetState() { //nolint:exhaustive // The other states are below.
	case pb.State_STATE_ROLLING_BACK, pb.State_STATE_PREPARING:
		return wait("%s", c.GetMessage())
	case pb.State_STATE_PROMOTING:
		return wait("promoting: %s", c.GetMessage())
	case pb.State_STATE_FAILED:
		if s.config.WaitOnFailure || s.step.Promote && slices.Contains(servesWhileFailed, c.GetReason()) {
			return wait("%s: %s", c.GetReason(), c.GetMessage())
		}
		return fail("%s: %s", c.GetReason(), c.GetMessage())
	}
	if id.Revision != c.GetUpdateRevision() || id.Revision != c.GetTemplateRevision() {
		return s.templateChanged(c, id)
	}
	call := Move{Release: id.String(), Revision: id.Revision}
	if s.step.Upgrade != "" && !s.targetSet {
		call.Action, call.Why = ActUpgrade, fmt.Sprintf("upgrading to %s", s.step.Upgrade)
		return call
	}
	if s.step.Weight != nil && *s.step.Weight > 0 && c.GetState() == pb.State_STATE_HOLDING {
		return fail("weight %d: no group is at the new revision that could take requests; upgrade in this step or an earlier one",
			*s.step.Weight)
	}
	switch {
	case !settledForStep(c):
		return wait("%s", c.GetMessage())
	case s.step.Headers != nil && !s.headersSet:
		call.Action, call.Why = ActHeaders, "setting the header route"
	case s.step.Mirror != nil && !s.mirrorSet:
		call.Action, call.Why = ActMirror, fmt.Sprintf("mirroring %d%% of the requests", *s.step.Mirror)
	case s.step.Weight != nil && !s.weightSet:
		call.Action, call.Why = ActWeight, fmt.Sprintf("sending %d%% of the requests to the new revision", *s.step.Weight)
	case s.step.Weight != nil && c.GetTrafficWeight() != *s.step.Weight:
		return wait("%s", c.GetMessage())
	case s.step.Promote:
		call.Action, call.Why = ActPromote, "promoting"
	default:
		return succeed("%s", c.GetMessage())
	}
	return call
}

// servesWhileFailed are the reasons of failed promotions whose groups serve, so that an abort would only take them back: pods that
// can't be deleted are left, or a person has to scale the workload to its former number of groups.
var servesWhileFailed = []string{"CleanupDeadlineExceeded", "StableCapacityReduced"}

// settledForStep reports whether the batch is complete, or none was requested.
func settledForStep(c *pb.BatchContext) bool {
	return c.GetState() == pb.State_STATE_READY || c.GetState() == pb.State_STATE_HOLDING
}

// templateChanged decides about a new template during the release.
func (s *stepper) templateChanged(c *pb.BatchContext, id ID) Move {
	if s.config.Manual {
		return fail("the template of %s changed during the release, from revision %s to %s: to release the new one, %s",
			s.config.Workload, id.Revision, c.GetTemplateRevision(), s.facts.Retry)
	}
	return Move{
		Action: ActRollback, Release: id.String(),
		Why: fmt.Sprintf("rolling back release %s: the template of %s is now at revision %s", id, s.config.Workload, c.GetTemplateRevision()),
	}
}
