// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/output"
	"github.com/lockstep-rollouts/lockstep/internal/cli/session"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func newHistoryCommand(o *connect.Options) *cobra.Command {
	f := session.Flags{RetryFor: session.ShortRetry, ReadOnly: true}
	cmd := f.Command(o, &cobra.Command{
		Use:   "history NAME",
		Short: "Show a workload's template revisions, and how their releases ended",
		Long: `Show a workload's template revisions, the newest first, each with its time, the changed images, the field manager that changed
it, its release and the outcome. It changes nothing. The sign * marks the revision that the groups run, > the template in the
spec if it is another. A revision that waits for a release has no number.

10 revisions are kept, or as many as the workload's annotation lockstep.dev/history-limit says. A revision in use is never
deleted. With -o the document is the contract's ListRevisionsResponse as ProtoJSON.`,
		Example: "  lockstep history vllm\n  lockstep history vllm -o yaml",
	}, func(s *session.Session) error {
		response, err := revisions(s, false)
		if err != nil {
			return err
		}
		if f.Output.Format != "" {
			return output.WriteMessage(s.Stdout, response, f.Output.Format)
		}
		_, err = fmt.Fprint(s.Stdout, view.History(response.GetRevisions(), time.Now()))
		return err
	})
	f.Output.Add(cmd)
	return cmd
}

// revisions returns the history, and shows its warnings.
func revisions(s *session.Session, templates bool) (*pb.ListRevisionsResponse, error) {
	response, err := session.Call(s, "read the history of", s.ListRevisions,
		&pb.ListRevisionsRequest{Workload: s.Ref, IncludeTemplates: templates})
	if err != nil {
		return nil, err
	}
	s.Warn(response.GetWarnings()...)
	for _, r := range response.GetRevisions() {
		if r.GetProblem() != "" {
			_, _ = fmt.Fprintf(s.Stderr, "warning: revision %s: %s\n", revisionName(r), r.GetProblem())
		}
	}
	return response, nil
}

// pick finds a revision by its number or its hash.
func pick(s *session.Session, all []*pb.Revision, name string) (*pb.Revision, error) {
	for _, r := range all {
		if r.GetName() == name || r.GetNumber() > 0 && strconv.FormatInt(r.GetNumber(), 10) == name {
			return r, nil
		}
	}
	known := ""
	for _, r := range all {
		known += " " + revisionName(r)
	}
	if known == "" {
		known = " nothing yet"
	}
	return nil, fmt.Errorf("there is no revision %s in the history of %s, which has:%s\n  to see it: %s", name, s.Name, known, s.Hints.History)
}

// revisionName returns the number of a revision, or the hash of one without.
func revisionName(r *pb.Revision) string {
	if r.GetNumber() == 0 {
		return r.GetName()
	}
	return strconv.FormatInt(r.GetNumber(), 10)
}
