// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/host"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// outcomeError returns nil if a run ended as wanted, and otherwise an error with the release's status and the next commands.
func outcomeError(result host.Result, hints Hints, wanted ...host.Outcome) error {
	if slices.Contains(wanted, result.Outcome) {
		return nil
	}
	id, c := result.ReleaseID, result.Context
	switch result.Outcome {
	case host.OutcomeFailed:
		return exit.Errorf(exit.Failed, "release %s failed (%s): %s%s", id, c.GetReason(), c.GetMessage(), nextSteps(c, hints))
	case host.OutcomeGateFailed:
		return exit.Errorf(exit.Failed, "release %s stays at its batch: %s%s", id, result.Failure, nextSteps(c, hints))
	case host.OutcomeRolledBack:
		return exit.Errorf(exit.RolledBack, "release %s was rolled back: %s", id, cmp.Or(result.Failure, c.GetMessage()))
	case host.OutcomeInterrupted:
		return exit.Errorf(exit.Interrupted, "interrupted: %s%s", progress(result), nextSteps(c, hints))
	case host.OutcomePromoted:
		return fmt.Errorf("too late: release %s is already promoted", id)
	case host.OutcomeSuperseded:
		return fmt.Errorf("not promoted: the template changed during release %s\n  to see the status: %s", id, hints.Status)
	default:
		return fmt.Errorf("release %s ended as %s", id, result.Outcome)
	}
}

// progress describes an interrupted release.
func progress(result host.Result) string {
	c := result.Context
	if c == nil || result.ReleaseID == "" || c.GetReleaseId() != result.ReleaseID {
		return "no release was started"
	}
	text := fmt.Sprintf("release %s of %s/%s is %s", result.ReleaseID, c.GetWorkload().GetNamespace(),
		c.GetWorkload().GetName(), strings.TrimPrefix(c.GetState().String(), "STATE_"))
	if c.CurrentBatch != nil {
		text += fmt.Sprintf(" at batch %d/%d (%s), %d of %d groups ready", c.GetCurrentBatch()+1, c.GetBatches(),
			c.GetTarget(), c.GetUpdatedReady(), c.GetPlanned())
	}
	return text
}

// nextSteps returns the commands that fit the release's state, one a line.
func nextSteps(c *pb.BatchContext, hints Hints) string {
	if c == nil {
		return ""
	}
	again := "\n  to resume:  " + hints.Again
	switch c.GetState() {
	case pb.State_STATE_FAILED:
		if hints.Stay != "" {
			again = "\n  to resume when it recovers: " + hints.Stay
		}
		return again + "\n  to abort: " + hints.Abort
	case pb.State_STATE_PROMOTING:
		return again + intentRecorded + "\n  to abort:   " + hints.Abort
	case pb.State_STATE_ROLLING_BACK:
		return again + intentRecorded
	default:
		return again + "\n  to promote: " + hints.Promote + "\n  to abort:   " + hints.Abort
	}
}

const intentRecorded = "\n  the intent is recorded: any running driver completes it"
