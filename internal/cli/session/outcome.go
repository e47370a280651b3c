// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/host"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// outcomeError returns nil if a run ended as wanted, else an error that says where the release stands and which commands
// lead on.
func outcomeError(result host.Result, hints Hints, wanted ...host.Outcome) error {
	if slices.Contains(wanted, result.Outcome) {
		return nil
	}
	id, c := result.ReleaseID, result.Context
	switch result.Outcome {
	case host.OutcomeFailed:
		return exit.Errorf(exit.Failed, "release %s failed (%s): %s%s", id, c.GetReason(), c.GetMessage(), nextSteps(c, hints))
	case host.OutcomeRolledBack:
		return exit.Errorf(exit.RolledBack, "release %s was rolled back: %s", id, c.GetMessage())
	case host.OutcomeInterrupted:
		return exit.Errorf(exit.Interrupted, "interrupted: %s%s", standing(result), nextSteps(c, hints))
	case host.OutcomePromoted:
		return fmt.Errorf("too late: release %s is promoted", id)
	case host.OutcomeSuperseded:
		return fmt.Errorf("release %s got a new template, which has not served yet: not promoted\n  to see it: %s", id, hints.Status)
	default:
		return fmt.Errorf("release %s ended as %s", id, result.Outcome)
	}
}

// standing says where an interrupted release is.
func standing(result host.Result) string {
	c := result.Context
	if c == nil || result.ReleaseID == "" || c.GetReleaseId() != result.ReleaseID {
		return "no release was begun"
	}
	text := fmt.Sprintf("release %s of %s/%s is %s", result.ReleaseID, c.GetWorkload().GetNamespace(),
		c.GetWorkload().GetName(), strings.TrimPrefix(c.GetState().String(), "STATE_"))
	if c.CurrentBatch != nil {
		text += fmt.Sprintf(" at batch %d/%d (%s), %d of %d groups ready", c.GetCurrentBatch()+1, c.GetBatches(),
			c.GetTarget(), c.GetUpdatedReady(), c.GetPlanned())
	}
	return text
}

// nextSteps returns the commands that lead on from where the release stands, one a line.
func nextSteps(c *pb.BatchContext, hints Hints) string {
	if c == nil {
		return ""
	}
	again := "\n  to go on:   " + hints.Again
	switch c.GetState() {
	case pb.State_STATE_FAILED:
		if hints.Stay != "" {
			again = "\n  to go on when it recovers: " + hints.Stay
		}
		return again + "\n  to abort: " + hints.Abort
	case pb.State_STATE_PROMOTING:
		return again + recorded + "\n  to abort:   " + hints.Abort
	case pb.State_STATE_ROLLING_BACK:
		return again + recorded
	default:
		return again + "\n  to promote: " + hints.Promote + "\n  to abort:   " + hints.Abort
	}
}

const recorded = "\n  the end of the release is recorded: any running driver finishes it"
