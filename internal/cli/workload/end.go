// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/session"
	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// ending is one of the two ends of a release, as a command.
type ending struct {
	verb    string
	short   string
	long    string
	intent  pb.FinalizeIntent
	outcome host.Outcome
	state   pb.State
}

func newPromoteCommand(o *connect.Options) *cobra.Command {
	return ending{
		verb:  "promote",
		short: "Finish a workload's release forwards: all groups move to the new revision",
		long: `Finish the unfinished release of a workload forwards, whatever batch it is at, and follow it until nothing of the
release is left but the hold. If the template changes before the promotion is recorded, nothing is promoted.`,
		intent:  pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE,
		outcome: host.OutcomePromoted,
		state:   pb.State_STATE_COMPLETED,
	}.command(o)
}

func newAbortCommand(o *connect.Options) *cobra.Command {
	return ending{
		verb:  "abort",
		short: "Roll a workload's release back",
		long: `Roll the unfinished release of a workload back to the stable revision, and follow it until nothing of the release is
left but the hold. A promotion is taken back, too, until it is over. The template waits under the hold for the next release;
only where every group had been updated already, the stable one is put back in its place.`,
		intent:  pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK,
		outcome: host.OutcomeRolledBack,
		state:   pb.State_STATE_ROLLED_BACK,
	}.command(o)
}

// endFlags are the flags of `lockstep promote` and `lockstep abort`.
type endFlags struct {
	session.Flags

	noWait bool
	force  bool
}

func (e ending) command(o *connect.Options) *cobra.Command {
	var f endFlags
	cmd := f.Command(o, &cobra.Command{
		Use:   e.verb + " NAME",
		Short: e.short,
		Long: e.long + `

The intent is recorded at once and outlives this command: any driver that runs finishes it. A release that another
host drives is refused without --force: that host should be told instead.`,
		Example: fmt.Sprintf("  lockstep %[1]s vllm\n  lockstep %[1]s vllm --no-wait --address unix:///run/lockstep/lockstep.sock", e.verb),
	}, func(s *session.Session) error { return e.run(s, f) })
	flags := cmd.Flags()
	flags.BoolVar(&f.noWait, "no-wait", false, "record the intent and leave the rest to a driver that runs elsewhere")
	flags.BoolVar(&f.force, "force", false, "also when another host drives the release")
	f.AddRetryFor(cmd)
	f.Output.Add(cmd)
	f.Output.AddFinal(cmd)
	return cmd
}

func (e ending) run(s *session.Session, f endFlags) error {
	c, err := s.Host.Look(s.Context, s.Ref)
	if err != nil {
		return s.Explain(err, e.verb)
	}
	switch {
	case c.GetState() == e.state:
		s.Say(host.Event{Context: c, Outcome: e.outcome,
			Message: fmt.Sprintf("nothing to do: release %s is %s", c.GetReleaseId(), stateName(c))})
		return nil
	case !plugin.InFlight(c):
		return fmt.Errorf("cannot %s %s: it has no unfinished release, its state is %s\n  to see it: %s",
			e.verb, s.Name, stateName(c), s.Hints.Status)
	case !f.force && c.GetOwner() != "" && !strings.HasPrefix(c.GetOwner(), ownerPrefix):
		return fmt.Errorf("cannot %s %s: %s drives release %s\n  tell it there, or do it behind its back with --force",
			e.verb, s.Name, c.GetOwner(), c.GetReleaseId())
	case f.noWait:
		return e.record(s, c, f)
	}
	result, err := s.Host.Finish(s.Context, c, e.intent)
	return s.Conclude(result, err, e.verb, e.outcome)
}

// record makes the intent durable and does not follow it.
func (e ending) record(s *session.Session, c *pb.BatchContext, f endFlags) error {
	request := &pb.FinalizeRequest{
		Workload: s.Ref, ReleaseId: c.GetReleaseId(), Intent: e.intent, UpdateRevision: c.GetUpdateRevision(), IncludeGroups: true,
	}
	var superseded error
	err := s.Host.Retry(s.Context, func(ctx context.Context) error {
		response, err := s.Finalize(ctx, request)
		if drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_REVISION_CHANGED {
			superseded = err // the contract would have the caller decide again, and here that is a person
			return nil
		}
		if err == nil {
			c = response.GetContext()
		}
		return err
	})
	if err = cmp.Or(err, superseded); err != nil {
		return s.Explain(err, e.verb)
	}
	message := fmt.Sprintf("recorded: %s release %s, which is %s now", e.verb, c.GetReleaseId(), stateName(c))
	if f.Dial.Address == "" {
		message += "; the driver of this command ends with it, so another one must run to finish this (lockstep serve)"
	}
	s.Say(host.Event{Context: c, Message: message, Outcome: e.outcome})
	return nil
}

func stateName(c *pb.BatchContext) string {
	return strings.TrimPrefix(c.GetState().String(), "STATE_")
}
