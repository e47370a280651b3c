// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/output"
	"github.com/lockstep-rollouts/lockstep/internal/cli/session"
	"github.com/lockstep-rollouts/lockstep/internal/host"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func newAdoptCommand(o *connect.Options) *cobra.Command {
	f := session.Flags{RetryFor: session.ShortRetry}
	return f.Command(o, &cobra.Command{
		Use:   "adopt NAME",
		Short: "Put a workload under hold: template changes then wait for a release",
		Long: `Put a workload under hold: a template change then moves no pod until it is released. lockstep release adopts, too, but too
late for a template that has already changed. The workload's own rolling update settings are saved: a promotion uses them,
and disown restores them. Adopting again repairs the hold.`,
		Example: "  lockstep adopt vllm",
	}, func(s *session.Session) error {
		response, err := session.Call(s, "adopt", s.Adopt, &pb.AdoptRequest{Workload: s.Ref})
		return showHold(s, response, err, "under hold: template changes now wait for a release", "already under hold; nothing changed")
	})
}

func newDisownCommand(o *connect.Options) *cobra.Command {
	f := session.Flags{RetryFor: session.ShortRetry}
	return f.Command(o, &cobra.Command{
		Use:   "disown NAME",
		Short: "Remove the hold: template changes roll out natively again",
		Long: `Remove the hold and restore the spec as the user had it. LeaderWorkerSet then rolls out a template that waited. Refused while a
release is in flight, and (REJECTED) while the user's own maxUnavailable and maxSurge both resolve to 0 of the current
replicas: scale up, or set other values, first.`,
		Example: "  lockstep disown vllm",
	}, func(s *session.Session) error {
		response, err := session.Call(s, "disown", s.Disown, &pb.DisownRequest{Workload: s.Ref})
		return showHold(s, response, err, "disowned: template changes roll out natively again", "not adopted; nothing changed")
	})
}

// showHold shows one text if the driver wrote something, and another if nothing changed.
func showHold(s *session.Session, response interface {
	GetAction() pb.Action
	GetWarnings() []*pb.Warning
}, err error, written, unchanged string) error {
	if err != nil {
		return err
	}
	s.Warn(response.GetWarnings()...)
	if response.GetAction() == pb.Action_ACTION_CONFIGURED {
		unchanged = written
	}
	_, err = fmt.Fprintf(s.Stdout, "%s: %s\n", s.Name, unchanged)
	return err
}

func newUndoCommand(o *connect.Options) *cobra.Command {
	f := session.Flags{RetryFor: session.ShortRetry}
	var revision string
	cmd := f.Command(o, &cobra.Command{
		Use:   "undo NAME",
		Short: "Restore an earlier template of a workload",
		Long: `Restore an earlier template in a workload's spec: that of --to-revision, or else of the newest revision that served before the
current one and was not rolled back.

The template waits under hold like any other change, until lockstep release or another host releases it batch by batch. With
lockstep release --batches 0 all groups are replaced at once, at the workload's own maxUnavailable and maxSurge.

Refused while a release is in flight: use lockstep abort. A GitOps tool overwrites the template at its next sync: revert the
change in Git, too.`,
		Example: "  lockstep undo vllm\n  lockstep undo vllm --to-revision 3\n  lockstep release vllm --batches 0",
	}, func(s *session.Session) error { return undoTo(s, revision) })
	cmd.Flags().StringVar(&revision, "to-revision", "", "number or hash of the revision, as lockstep history shows them")
	completeFlag(cmd, "to-revision")
	output.AddFormat(cmd, &f.Output)
	return cmd
}

func undoTo(s *session.Session, to string) error {
	request := &pb.UndoRequest{Workload: s.Ref}
	// The user sees numbers, and the request has the hash.
	if to != "" {
		history, err := listRevisions(s, false)
		if err != nil {
			return err
		}
		revision, err := pickRevision(s, history.GetRevisions(), to)
		if err != nil {
			return err
		}
		request.Revision = revision.GetName()
	} else {
		// A retry must not undo what a request did whose answer was lost.
		c, err := s.Host.Look(s.Context, s.Ref)
		if err != nil {
			return s.Explain(err, "undo")
		}
		request.TemplateRevision = c.GetTemplateRevision()
	}
	response, err := session.Call(s, "undo", s.Undo, request)
	if err != nil {
		return err
	}
	outcome := host.OutcomeRestored
	text := fmt.Sprintf("restored the template of revision %s: it waits for a release", response.GetRevision())
	if response.GetAction() == pb.Action_ACTION_UNCHANGED {
		outcome = host.OutcomeNothing
		text = fmt.Sprintf("the template is already that of revision %s; nothing changed", response.GetRevision())
	}
	// The answer to Undo tells nothing of the groups.
	c, err := s.Host.Look(s.Context, s.Ref)
	if err != nil {
		return s.Explain(err, "read the status of")
	}
	if outcome == host.OutcomeRestored && allRun(c, response.GetRevision()) {
		text = fmt.Sprintf("restored the template of revision %s, run by all groups: there is nothing to release", response.GetRevision())
	}
	s.Say(host.Event{Context: c, Outcome: outcome, Message: text})
	return nil
}

// allRun reports whether all groups of the workload itself run a revision.
func allRun(c *pb.BatchContext, revision string) bool {
	groups := 0
	for _, g := range c.GetGroups() {
		// The groups of a canary are deleted at the end of its release.
		if g.GetRole() != pb.GroupRole_GROUP_ROLE_STABLE {
			continue
		}
		if g.GetRevision() != revision {
			return false
		}
		groups++
	}
	// Groups that are left out may run another revision.
	return groups > 0 && c.GetGroupsOmitted() == 0
}
