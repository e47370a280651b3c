// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockstep-rollouts/lockstep/internal/host"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Exit codes of the commands that drive a release, besides those of every command.
const (
	exitFailed      = 3
	exitRolledBack  = 4
	exitFound       = 5
	exitInterrupted = 130
)

// exitMeaning is one row of the table of exit codes.
type exitMeaning struct {
	code    int
	meaning string
}

// exitCodes is the table of exit codes, for the help and the documentation.
func exitCodes() []exitMeaning {
	return []exitMeaning{
		{exitOK, "done as asked, or there was nothing to release"},
		{exitError, "an error: the message says what, where, and what to do"},
		{exitUsage, "the command line is wrong"},
		{exitFailed, "the release is FAILED, for example past its progress deadline, and was left where it is"},
		{exitRolledBack, "the release was rolled back, and this command was not to do that"},
		{exitFound, "preflight found what --fail-on does not let pass"},
		{exitInterrupted, "interrupted with Ctrl-C or SIGTERM: the release stands where it stood"},
	}
}

// newExitCodesTopic makes `lockstep help exit-codes`.
func newExitCodesTopic(*options) *cobra.Command {
	var b strings.Builder
	b.WriteString("lockstep exits with one of these codes:\n\n")
	for _, row := range exitCodes() {
		fmt.Fprintf(&b, "  %3d  %s\n", row.code, row.meaning)
	}
	return &cobra.Command{Use: "exit-codes", Short: "What lockstep's exit codes mean", Long: strings.TrimSpace(b.String())}
}

// verdict turns the end of a run into the command's error: nil if it ended as wanted, else a text that says where the
// release stands and which commands lead on.
func verdict(result host.Result, commands hints, wanted ...host.Outcome) error {
	for _, outcome := range wanted {
		if result.Outcome == outcome {
			return nil
		}
	}
	switch result.Outcome {
	case host.OutcomeFailed:
		return ends(exitFailed, fmt.Sprintf("release %s failed (%s): %s", result.ReleaseID, result.Context.GetReason(),
			result.Context.GetMessage()), leads(result, commands))
	case host.OutcomeRolledBack:
		return ends(exitRolledBack, fmt.Sprintf("release %s was rolled back: %s", result.ReleaseID,
			result.Context.GetMessage()), nil)
	case host.OutcomeInterrupted:
		return ends(exitInterrupted, "interrupted: "+standing(result), leads(result, commands))
	case host.OutcomePromoted:
		return ends(exitError, fmt.Sprintf("too late: release %s is promoted", result.ReleaseID), nil)
	case host.OutcomeSuperseded:
		return ends(exitError, fmt.Sprintf("release %s got a new template, which has not served yet: not promoted",
			result.ReleaseID), []string{"  to see it: " + commands.status})
	default:
		return ends(exitError, fmt.Sprintf("release %s ended as %s", result.ReleaseID, result.Outcome), nil)
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

// leads are the commands that lead on from where the release stands.
func leads(result host.Result, commands hints) []string {
	if result.Context == nil {
		return nil
	}
	lines := []string{"  to go on:   " + commands.again}
	switch result.Context.GetState() {
	case pb.State_STATE_FAILED:
		if commands.stay != "" {
			lines = []string{"  to go on when it recovers: " + commands.stay}
		}
		return append(lines, "  to abort: "+commands.abort)
	case pb.State_STATE_PROMOTING, pb.State_STATE_ROLLING_BACK:
		lines = append(lines, "  the end of the release is recorded: any running driver finishes it")
		if result.Context.GetState() == pb.State_STATE_PROMOTING {
			lines = append(lines, "  to abort:   "+commands.abort)
		}
		return lines
	default:
		return append(lines, "  to promote: "+commands.promote, "  to abort:   "+commands.abort)
	}
}

// ends is an error of several lines.
func ends(code int, text string, more []string) error {
	return &codedError{code: code, err: errors.New(strings.Join(append([]string{text}, more...), "\n"))}
}
