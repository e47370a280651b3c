// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// undoFlags are the flags of `lockstep undo`.
type undoFlags struct {
	target

	revision  string
	immediate bool
}

// newUndoCommand makes `lockstep undo`.
func newUndoCommand(o *options) *cobra.Command {
	var f undoFlags
	cmd := &cobra.Command{
		Use:   "undo NAME",
		Short: "Bring an older template of a workload back",
		Long: `Bring an older template of a workload back into its spec: that of --to-revision, or else of the newest revision that
served before the present one. Those whose release was rolled back are passed over.

The template waits under the hold like any other change of it: whoever releases the workload does the rest, batch by batch
(lockstep release, or the Rollout of Argo or Kruise). With --immediate this command does: it releases the template at once,
without batches, and all groups are replaced at the workload's own maxUnavailable and maxSurge.

Refused while a release is in flight: lockstep abort is the way back from there. A GitOps tool that applies the workload's
manifest puts its own template back at its next sync: revert the change there, too.`,
		Example:           "  lockstep undo vllm\n  lockstep undo vllm --to-revision 3\n  lockstep undo vllm --immediate",
		Args:              oneName,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, o, args[0], func(s *session) error { return f.undo(s, o) })
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.revision, "to-revision", "", "number or hash of the revision, as lockstep history shows them")
	flags.BoolVar(&f.immediate, "immediate", false, "release it at once and without batches, and follow that until it is over")
	flags.DurationVar(&f.patience, "retry-for", 5*time.Minute,
		"how long to go on while the driver or the API server does not answer")
	f.dial.add(cmd)
	f.output.add(cmd, true)
	return cmd
}

func (f *undoFlags) undo(s *session, o *options) error {
	request := &pb.UndoRequest{Workload: s.ref}
	if f.revision != "" {
		history, err := s.revisions(o, false)
		if err != nil {
			return err
		}
		revision, err := s.pick(history.GetRevisions(), f.revision)
		if err != nil {
			return err
		}
		request.Revision = revision.GetName()
	}
	var response *pb.UndoResponse
	err := s.host.Retry(s.ctx, func(ctx context.Context) (err error) {
		response, err = s.Undo(ctx, request)
		return err
	})
	if err != nil {
		return s.explain(err, "undo")
	}
	if f.immediate {
		return f.releaseNow(s, response.GetRevision())
	}
	outcome := host.OutcomeRestored
	text := fmt.Sprintf("the template of revision %s is back, and waits for a release", response.GetRevision())
	if response.GetAction() == pb.Action_ACTION_UNCHANGED {
		outcome = host.OutcomeNothing
		text = fmt.Sprintf("the template is that of revision %s already; nothing changed", response.GetRevision())
	}
	c, err := s.host.Look(s.ctx, s.ref)
	if err != nil {
		return s.explain(err, "read the status of")
	}
	s.say(host.Event{Kind: host.EventFinished, Context: c, Outcome: outcome, Message: text})
	return nil
}

// releaseNow begins a release in place and promotes it before any batch: the workload's own controller then replaces all
// groups at the pace that its user set.
func (f *undoFlags) releaseNow(s *session, revision string) error {
	if err := s.awaitTemplate(revision); err != nil {
		return s.explain(err, "undo")
	}
	request := &pb.InitializeRequest{
		Workload: s.ref, ReleaseId: newReleaseID(), Owner: owner(), IncludeGroups: true,
		Policy: &pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: []string{"100%"}},
	}
	var c *pb.BatchContext
	err := s.host.Retry(s.ctx, func(ctx context.Context) error {
		response, err := s.Initialize(ctx, request)
		c = response.GetContext()
		return err
	})
	if err != nil {
		return s.explain(err, "undo")
	}
	if c.GetState() == pb.State_STATE_NOTHING_TO_RELEASE {
		s.say(host.Event{Kind: host.EventFinished, Context: c, Outcome: host.OutcomeNothing, Message: c.GetMessage()})
		return nil
	}
	result, err := s.host.Finish(s.ctx, c, pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE)
	return s.conclude(result, err, "undo", host.OutcomePromoted)
}

// awaitTemplate returns once the workload's controller has recorded the template that is back.
func (s *session) awaitTemplate(revision string) error {
	ctx, cancel := context.WithTimeout(s.ctx, shortPatience)
	defer cancel()
	var last *pb.BatchContext
	for c, err := range s.WatchBatchContext(ctx, &pb.WatchBatchContextRequest{Workload: s.ref}) {
		if err != nil {
			if ctx.Err() != nil {
				break
			}
			return err
		}
		if last = c; c.GetTemplateRevision() != "" {
			break
		}
	}
	switch now := last.GetTemplateRevision(); {
	case now == revision:
		return nil
	case s.ctx.Err() != nil:
		return context.Cause(s.ctx)
	case now == "":
		return drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED,
			"the LeaderWorkerSet controller has not recorded the template of revision %s, which is back: check that it runs", revision)
	default:
		return drivererr.New(pb.ErrorReason_ERROR_REASON_REVISION_CHANGED,
			"the template of revision %s was brought back, and revision %s took its place: somebody applies it again, perhaps a GitOps tool", revision, now)
	}
}
