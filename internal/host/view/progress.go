// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Progress returns the context in one line.
func Progress(c *pb.BatchContext) string {
	state := StateWord(c.GetState())
	switch c.GetState() {
	case pb.State_STATE_UPGRADING, pb.State_STATE_VERIFYING, pb.State_STATE_READY:
		return fmt.Sprintf("%s: batch %s, %d/%d groups ready, stable %d/%d ready, %s",
			state, BatchWord(c), c.GetUpdatedReady(), c.GetPlanned(), c.GetStableReady(), c.GetReplicas(), weight(c))
	case pb.State_STATE_PROMOTING:
		text := fmt.Sprintf("%s: groups %s", state, promoted(c))
		if routed(c) {
			text += ", " + weight(c)
		}
		return text
	case pb.State_STATE_FAILED:
		return OneLine(fmt.Sprintf("%s (%s): %s", state, c.GetReason(), c.GetMessage()))
	default:
		return OneLine(fmt.Sprintf("%s: %s", state, c.GetMessage()))
	}
}

// weight returns the share of the update revision, of requests or of ready groups.
func weight(c *pb.BatchContext) string {
	if routed(c) {
		return fmt.Sprintf("canary gets %d%% of requests", c.GetTrafficWeight()) + requested(c)
	}
	return fmt.Sprintf("%d%% of ready groups are new", c.GetTrafficWeight())
}

// progressKey is the same for two contexts with the same state, batch, counts and traffic. The message of a failed release
// is left out, since groups have lines of their own.
func progressKey(c *pb.BatchContext) string {
	if c.GetState() == pb.State_STATE_FAILED {
		return fmt.Sprint(c.GetState(), c.GetReason(), BatchWord(c), c.GetUpdatedReady(), c.GetPlanned())
	}
	return Progress(c)
}

// promoted counts the workload's own groups, as in "3/4 ready at 5b459954f8".
func promoted(c *pb.BatchContext) string {
	return fmt.Sprintf("%d/%d ready at %s", c.GetUpdatedReady(), c.GetReplicas(), orDash(c.GetUpdateRevision()))
}

// Problem returns why the group is not ready, and because of which pod.
func Problem(g *pb.Group) string {
	text := podProblem(g)
	if text != "" && g.GetPod() != "" {
		text = "pod " + OneLine(g.GetPod()) + ": " + text
	}
	return text
}

// podProblem returns why the group's pod blocks it.
func podProblem(g *pb.Group) string {
	text := g.GetReason()
	if text != "" && g.GetMessage() != "" && g.GetMessage() != text {
		text += ": " + g.GetMessage()
	}
	return OneLine(text)
}
