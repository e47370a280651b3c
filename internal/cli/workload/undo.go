// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/cli/session"
	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

type undoFlags struct {
	session.Flags

	revision  string
	immediate bool
}

func newUndoCommand(o *connect.Options) *cobra.Command {
	var f undoFlags
	cmd := f.Command(o, &cobra.Command{
		Use:   "undo NAME",
		Short: "Restore an earlier template of a workload",
		Long: `Restore an earlier template in a workload's spec: that of --to-revision, or else of the newest revision that served before the
current one and was not rolled back.

The template waits under hold like any other change, until lockstep release or another host releases it batch by batch. With
--immediate this command releases it without batches: all groups are replaced at the workload's own maxUnavailable and
maxSurge.

Refused while a release is in flight: use lockstep abort. A GitOps tool overwrites the template at its next sync: revert the
change in Git, too.`,
		Example: "  lockstep undo vllm\n  lockstep undo vllm --to-revision 3\n  lockstep undo vllm --immediate",
	}, f.undo)
	flags := cmd.Flags()
	flags.StringVar(&f.revision, "to-revision", "", "number or hash of the revision, as lockstep history shows them")
	flags.BoolVar(&f.immediate, "immediate", false, "release it at once, without batches, and follow the release")
	f.AddRetryFor(cmd)
	f.Output.Add(cmd)
	f.Output.AddFinal(cmd)
	return cmd
}

func (f *undoFlags) undo(s *session.Session) error {
	if f.immediate && s.Ref.GetKind() == observe.KindSet {
		return exit.Usagef("--immediate is for LeaderWorkerSets: undo without it, and then use lockstep release %s", s.Ref.GetKind()+"/"+s.Ref.GetName())
	}
	request := &pb.UndoRequest{Workload: s.Ref}
	if f.revision != "" {
		history, err := revisions(s, false)
		if err != nil {
			return err
		}
		revision, err := pick(s, history.GetRevisions(), f.revision)
		if err != nil {
			return err
		}
		request.Revision = revision.GetName()
	}
	response, err := session.Call(s, "undo", s.Undo, request)
	if err != nil {
		return err
	}
	if f.immediate {
		return f.releaseNow(s, response.GetRevision())
	}
	outcome := host.OutcomeRestored
	text := fmt.Sprintf("restored the template of revision %s: it waits for a release", response.GetRevision())
	if response.GetAction() == pb.Action_ACTION_UNCHANGED {
		outcome = host.OutcomeNothing
		text = fmt.Sprintf("the template is already that of revision %s; nothing changed", response.GetRevision())
	}
	c, err := s.Host.Look(s.Context, s.Ref)
	if err != nil {
		return s.Explain(err, "read the status of")
	}
	s.Say(host.Event{Context: c, Outcome: outcome, Message: text})
	return nil
}

// releaseNow starts a release in place and promotes it before any batch: the workload's own controller then replaces all
// groups at the user's own maxUnavailable and maxSurge.
func (f *undoFlags) releaseNow(s *session.Session, revision string) error {
	if err := awaitTemplate(s, revision); err != nil {
		return s.Explain(err, "undo")
	}
	request := &pb.InitializeRequest{
		Workload: s.Ref, ReleaseId: newReleaseID(), Owner: owner(), IncludeGroups: true,
		Policy: &pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: []string{"100%"}},
	}
	response, err := session.Call(s, "undo", s.Initialize, request)
	if err != nil {
		return err
	}
	c := response.GetContext()
	if c.GetState() == pb.State_STATE_NOTHING_TO_RELEASE {
		s.Say(host.Event{Context: c, Outcome: host.OutcomeNothing, Message: c.GetMessage()})
		return nil
	}
	result, err := s.Host.Finish(s.Context, c, pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE, "undo")
	return s.Conclude(result, err, "undo", host.OutcomePromoted)
}

// awaitTemplate waits until the workload's controller has recorded the restored template.
func awaitTemplate(s *session.Session, revision string) error {
	ctx, cancel := context.WithTimeout(s.Context, session.ShortRetry)
	defer cancel()
	var last *pb.BatchContext
	for c, err := range s.WatchBatchContext(ctx, &pb.WatchBatchContextRequest{Workload: s.Ref}) {
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
	case s.Context.Err() != nil:
		return context.Cause(s.Context)
	case now == "":
		return drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED,
			"the LeaderWorkerSet controller has not recorded the restored template of revision %s: check that it runs", revision)
	default:
		return drivererr.New(pb.ErrorReason_ERROR_REASON_REVISION_CHANGED,
			"the restored template of revision %s was replaced by revision %s: check for a GitOps tool that applies the manifest", revision, now)
	}
}
