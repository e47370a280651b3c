// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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

// Hints are command lines about the same workload and driver, ready to be pasted.
type Hints struct {
	Again, Status, Promote, Abort, History string
	// Stay is Again with --on-failure wait. Empty means that the command has no such flag.
	Stay string
	// Inside is true if the driver is inside this process, with the user's own permissions.
	Inside bool
}

// HintsFor returns the hints of a parsed command line.
func HintsFor(cmd *cobra.Command, name string) Hints {
	line := func(verb string, keep func(flag string) bool) string {
		words := []string{cmd.Root().Name(), verb, name}
		cmd.Flags().Visit(func(f *pflag.Flag) {
			if keep(f.Name) {
				words = append(words, flagWords(f)...)
			}
		})
		return strings.Join(words, " ")
	}
	shared := []string{"kubeconfig", "context", "namespace", "address", "tls-cert", "tls-key", "tls-ca"}
	reach := func(flag string) bool { return slices.Contains(shared, flag) }
	h := Hints{
		Again:   line(cmd.Name(), func(string) bool { return true }),
		Status:  line("status", reach),
		Promote: line("promote", reach),
		Abort:   line("abort", reach),
		History: line("history", reach),
	}
	if f := cmd.Flags().Lookup("address"); f != nil {
		h.Inside = !f.Changed
	}
	if cmd.Flags().Lookup("on-failure") != nil {
		h.Stay = line(cmd.Name(), func(flag string) bool { return flag != "on-failure" }) + " --on-failure wait"
	}
	return h
}

// flagWords returns a flag as it is typed.
func flagWords(f *pflag.Flag) []string {
	value := f.Value.String()
	if list, ok := f.Value.(pflag.SliceValue); ok {
		value = strings.Join(list.GetSlice(), ",")
	}
	if f.Value.Type() == "bool" {
		if value == "true" {
			return []string{"--" + f.Name}
		}
		return []string{"--" + f.Name + "=" + value}
	}
	return []string{"--" + f.Name, quote(value)}
}

// quote returns a word that a POSIX shell reads as s.
func quote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("%+,-./:=@_", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
