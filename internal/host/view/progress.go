// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Progress is the context in one line. Two contexts that differ only in what people need not see give the same line.
func Progress(c *pb.BatchContext) string {
	switch c.GetState() {
	case pb.State_STATE_UPGRADING, pb.State_STATE_VERIFYING, pb.State_STATE_READY:
		return fmt.Sprintf("%s: batch %s, %d/%d groups ready, stable %d/%d ready, traffic %d%%",
			stateWord(c.GetState()), batchWord(c), c.GetUpdatedReady(), c.GetPlanned(),
			c.GetStableReady(), c.GetReplicas(), c.GetTrafficWeight())
	default:
		return oneLine(fmt.Sprintf("%s: %s", stateWord(c.GetState()), c.GetMessage()))
	}
}

// Problems is one line per group that is not ready and says why: "canary group 1: pod vllm-1-2: ImagePullBackOff".
func Problems(c *pb.BatchContext) []string {
	var lines []string
	for _, g := range c.GetGroups() {
		if p := problem(g); p != "" && !g.GetReady() {
			lines = append(lines, fmt.Sprintf("%s group %d: %s", roleWord(g.GetRole()), g.GetIndex(), p))
		}
	}
	return lines
}

// problem says why the group is not ready, and which pod is to blame.
func problem(g *pb.Group) string {
	text := g.GetReason()
	if text == "" {
		return ""
	}
	if g.GetPod() != "" {
		text = "pod " + g.GetPod() + ": " + text
	}
	if g.GetMessage() != "" {
		text += ": " + g.GetMessage()
	}
	return oneLine(text)
}
