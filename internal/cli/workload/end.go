// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/output"
	"github.com/lockstep-rollouts/lockstep/internal/cli/session"
	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// ending is a command that finalizes a release.
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
		short: "Promote a workload's release: all groups move to the new revision",
		long: `Promote the release in flight to the revision that the command observes first, whatever the batch, and follow it to the end.
If the template changes before the promotion is recorded, nothing is promoted, and the exit code is 1.`,
		intent:  pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE,
		outcome: host.OutcomePromoted,
		state:   pb.State_STATE_COMPLETED,
	}.command(o)
}

func newAbortCommand(o *connect.Options) *cobra.Command {
	return ending{
		verb:  "abort",
		short: "Roll back a workload's release",
		long: `Roll the release in flight back to the stable revision, and follow it to the end. A promotion can be rolled back, too, until
it is complete. The new template stays in the spec, under hold; only if every group had been updated, or a
group that restarts would be built from two templates, the stable template is restored.

In place, groups at the new revision are restarted within the workload's own maxUnavailable. A group that is broken for
another reason may use it up: the rollback then waits, and lockstep status names the group. With --force:

- Groups that are unavailable at that time are given up: they stay as they are, and the rollback ends without them.
- Other groups off the stable revision are restarted one at a time beyond them.
- Requests return to the stable groups that are ready, even if these are too few, and added groups are deleted without waiting for more.
- No group at the stable revision is restarted, and no request moves to a group that is not ready.

Force is recorded with the rollback; a second abort --force adds it to a running one. Run it again to give up groups that broke
since, once they have been unready for the progress deadline.`,
		intent:  pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK,
		outcome: host.OutcomeRolledBack,
		state:   pb.State_STATE_ROLLED_BACK,
	}.command(o)
}

// endFlags are the flags of `lockstep promote` and `lockstep abort`.
type endFlags struct {
	session.Flags

	noWait, ignoreOwner, force bool
	message                    string
}

func (e ending) command(o *connect.Options) *cobra.Command {
	var f endFlags
	cmd := f.Command(o, &cobra.Command{
		Use:   e.verb + " NAME",
		Short: e.short,
		Long: e.long + `

The intent is recorded at once. If this command ends, a lockstep serve completes it, or the same command run again. A release
that another host drives is refused without --ignore-owner: use that host, unless it is gone.`,
		Example: fmt.Sprintf("  lockstep %[1]s vllm\n  lockstep %[1]s vllm --no-wait --address unix:///run/lockstep/lockstep.sock", e.verb),
	}, func(s *session.Session) error { return e.run(s, f) })
	flags := cmd.Flags()
	flags.BoolVar(&f.noWait, "no-wait", false, "return once the intent is recorded")
	flags.StringVarP(&f.message, "message", "m", "", "reason, for the history, events and lockstep status")
	flags.BoolVar(&f.ignoreOwner, "ignore-owner", false, "also when another host drives the release")
	if e.intent == pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK {
		flags.BoolVar(&f.force, "force", false, "past stable groups that are broken, or too few for the requests; includes --ignore-owner")
	}
	f.AddRetryFor(cmd)
	output.AddFormat(cmd, &f.Output)
	return cmd
}

func (e ending) run(s *session.Session, f endFlags) error {
	c, err := s.Host.Look(s.Context, s.Ref)
	if err != nil {
		return s.Explain(err, e.verb)
	}
	switch {
	case c.GetState() == e.state:
		// A repeated command succeeds, so that pipelines can retry.
		s.Say(host.Event{Context: c, Outcome: e.outcome,
			Message: fmt.Sprintf("nothing to do: release %s is %s", c.GetReleaseId(), stateName(c))})
		return nil
	case !plugin.InFlight(c):
		return fmt.Errorf("cannot %s %s: it has no release in flight, its state is %s\n  to see the status: %s",
			e.verb, s.Name, stateName(c), s.Hints.Status)
	case !f.ignoreOwner && !f.force && host.IsOther(c.GetOwner()):
		return refuseOther(s, e.verb, c, s.Hints.Again+" --ignore-owner")
	case f.noWait:
		return e.record(s, c, f)
	}
	s.Host.Force = f.force
	result, err := s.Host.Finish(s.Context, c, e.intent, f.message)
	return s.Conclude(result, err, e.verb, e.outcome)
}

// refuseOther returns the error of a command about a release of another host, which would go on with it. end is the command for a host that is
// gone.
func refuseOther(s *session.Session, verb string, c *pb.BatchContext, end string) error {
	return fmt.Errorf("cannot %s %s: %s drives release %s\n  what to do: use that host, or if it is gone: %s",
		verb, s.Name, c.GetOwner(), c.GetReleaseId(), end)
}

// record records the intent and does not follow it.
func (e ending) record(s *session.Session, c *pb.BatchContext, f endFlags) error {
	// The user has seen this revision, so no other one is promoted.
	request := &pb.FinalizeRequest{
		Workload: s.Ref, ReleaseId: c.GetReleaseId(), Intent: e.intent, UpdateRevision: c.GetUpdateRevision(), IncludeGroups: true,
		Force: f.force, Message: f.message,
	}
	var superseded error
	err := s.Host.Retry(s.Context, func(ctx context.Context) error {
		response, err := s.Finalize(ctx, request)
		if drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_REVISION_CHANGED {
			superseded = err // not retried: the user decides again
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
		message += "; the driver of this command exits with it, so another one must run to complete it (lockstep serve)"
	}
	s.Say(host.Event{Context: c, Message: message, Outcome: host.OutcomeRecorded})
	return nil
}

func stateName(c *pb.BatchContext) string { return view.StateWord(c.GetState()) }
