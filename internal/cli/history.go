// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// newHistoryCommand makes `lockstep history`.
func newHistoryCommand(o *options) *cobra.Command {
	t := target{patience: shortPatience, readOnly: true}
	cmd := &cobra.Command{
		Use:   "history NAME",
		Short: "Show the templates that a workload has had, and how their releases ended",
		Long: `Show the templates that a workload has had, the newest first: when, what changed in its images, who changed it, the
release that brought it and how that ended. It changes nothing.

* marks the revision that the groups run, > the template in the spec where that is another one. One that waits for a
release has no number.

10 revisions are kept, or as many as the workload's annotation lockstep.dev/history-limit says. Those in use stay.`,
		Example:           "  lockstep history vllm\n  lockstep history vllm -o yaml",
		Args:              oneName,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return t.run(cmd, o, args[0], func(s *session) error {
				response, err := s.revisions(o, false)
				if err != nil {
					return err
				}
				if t.output.format != "" {
					return writeMessage(o.stdout, response, view.Format(t.output.format))
				}
				_, err = fmt.Fprint(o.stdout, view.History(response.GetRevisions(), time.Now()))
				return err
			})
		},
	}
	t.dial.add(cmd)
	t.output.add(cmd, false)
	return cmd
}

// revisions asks for the history, and tells people what is wrong with it.
func (s *session) revisions(o *options, templates bool) (*pb.ListRevisionsResponse, error) {
	var response *pb.ListRevisionsResponse
	err := s.host.Retry(s.ctx, func(ctx context.Context) (err error) {
		response, err = s.ListRevisions(ctx, &pb.ListRevisionsRequest{Workload: s.ref, IncludeTemplates: templates})
		return err
	})
	if err != nil {
		return nil, s.explain(err, "read the history of")
	}
	for _, w := range response.GetWarnings() {
		_, _ = fmt.Fprintf(o.stderr, "warning: %s [%s]\n", w.GetMessage(), w.GetCode())
	}
	for _, r := range response.GetRevisions() {
		if r.GetProblem() != "" {
			_, _ = fmt.Fprintf(o.stderr, "warning: revision %s: %s\n", revisionName(r), r.GetProblem())
		}
	}
	return response, nil
}

// pick finds the revision that a person names by its number or its hash.
func (s *session) pick(all []*pb.Revision, name string) (*pb.Revision, error) {
	for _, r := range all {
		if r.GetName() == name || r.GetNumber() > 0 && strconv.FormatInt(r.GetNumber(), 10) == name {
			return r, nil
		}
	}
	var known string
	for _, r := range all {
		known += " " + revisionName(r)
	}
	if known == "" {
		known = " nothing yet"
	}
	return nil, fmt.Errorf("there is no revision %s in the history of %s, it has:%s\n  to see them: %s", name, s.name, known, s.hints.history)
}

// revisionName is how people name a revision.
func revisionName(r *pb.Revision) string {
	if r.GetNumber() == 0 {
		return r.GetName()
	}
	return strconv.FormatInt(r.GetNumber(), 10)
}
