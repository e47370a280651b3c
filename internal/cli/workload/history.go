// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/cli/output"
	"github.com/lockstep-rollouts/lockstep/internal/cli/session"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func newHistoryCommand(o *connect.Options) *cobra.Command {
	f := session.Flags{RetryFor: session.ShortRetry, ReadOnly: true}
	var compare bool
	cmd := f.Command(o, &cobra.Command{
		Use:   "history NAME [REVISION [REVISION]]",
		Short: "Show a workload's template revisions, how their releases ended, and how two templates differ",
		Long: `Show a workload's template revisions, the newest first, each with its time, the changed images, its release, and the outcome with
the user who requested it. It changes nothing. The sign * marks the revision that the groups run, > the template in the
spec if it is another. A revision that waits for a release has no number.

10 revisions are kept, or as many as the workload's annotation lockstep.dev/history-limit says. A revision in use is never
deleted. With -o the document is the contract's ListRevisionsResponse as ProtoJSON, with owners and field managers.

With --diff it shows how two templates differ, as a unified diff of YAML, and nothing if they are equal. A revision is a number
or hash of the history.

- no revision: from the revision of the groups, or the previous one if that is equal, to the template in the spec: what a
  release would change
- one revision: from it to the template in the spec
- two revisions: from the first to the second`,
		Example: "  lockstep history vllm\n  lockstep history vllm -o yaml\n  lockstep history vllm --diff\n  lockstep history vllm 3 5 --diff",
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case compare && (len(args) == 0 || len(args) > 3 || args[0] == ""):
				return exit.Usagef("%s needs the name of one LeaderWorkerSet and at most two revisions, got %q", cmd.CommandPath(), args)
			case compare && f.Output != "":
				return exit.Usagef("--diff and --output exclude each other")
			case compare:
				return nil
			case len(args) > 1:
				return exit.Usagef("%s with a revision needs --diff", cmd.CommandPath())
			}
			return session.OneName(cmd, args)
		},
	}, func(s *session.Session) error {
		if compare {
			return showDiff(s, s.Args)
		}
		return showHistory(s, f.Output)
	})
	cmd.Flags().BoolVar(&compare, "diff", false, "show how two templates differ")
	output.AddFormat(cmd, &f.Output)
	return cmd
}

func showHistory(s *session.Session, format view.Format) error {
	response, err := listRevisions(s, false)
	if err != nil {
		return err
	}
	if format != "" {
		return view.WriteMessage(s.Stdout, response, format)
	}
	_, err = fmt.Fprint(s.Stdout, view.History(response.GetRevisions(), time.Now()))
	return err
}

// listRevisions returns the history, and shows its warnings.
func listRevisions(s *session.Session, templates bool) (*pb.ListRevisionsResponse, error) {
	response, err := session.Call(s, "read the history of", s.ListRevisions,
		&pb.ListRevisionsRequest{Workload: s.Ref, IncludeTemplates: templates})
	if err != nil {
		return nil, err
	}
	s.Warn(response.GetWarnings()...)
	for _, r := range response.GetRevisions() {
		if r.GetProblem() != "" {
			_, _ = fmt.Fprintf(s.Stderr, "warning: revision %s: %s\n", view.RevisionName(r), r.GetProblem())
		}
	}
	return response, nil
}

// pickRevision finds a revision by its number or its hash.
func pickRevision(s *session.Session, all []*pb.Revision, name string) (*pb.Revision, error) {
	for _, r := range all {
		if r.GetName() == name || r.GetNumber() > 0 && strconv.FormatInt(r.GetNumber(), 10) == name {
			return r, nil
		}
	}
	known := ""
	for _, r := range all {
		known += " " + view.RevisionName(r)
	}
	if known == "" {
		known = " nothing yet"
	}
	return nil, fmt.Errorf("there is no revision %s in the history of %s, which has:%s\n  to see it: %s", name, s.Name, known, s.Hints.History)
}

// showDiff compares revisions. There are at most two names.
func showDiff(s *session.Session, names []string) error {
	response, err := listRevisions(s, true)
	if err != nil {
		return err
	}
	from, to, err := pickPair(s, response.GetRevisions(), names)
	if err != nil {
		return err
	}
	text, err := view.Diff(from, to)
	if err != nil {
		return err
	}
	// YAML has characters that the templates' JSON escapes.
	_, err = fmt.Fprint(s.Stdout, view.Printable(text))
	return err
}

// pickPair returns the revisions to compare. The first of all is the newest.
func pickPair(s *session.Session, all []*pb.Revision, names []string) (from, to *pb.Revision, err error) {
	for _, r := range all {
		if r.GetCurrent() {
			to = r
		}
		if r.GetStable() && from == nil {
			from = r
		}
	}
	if len(names) > 0 {
		if from, err = pickRevision(s, all, names[0]); err != nil {
			return nil, nil, err
		}
	} else if from == to {
		// If no template waits for a release, the comparison is with the revision before.
		from = revisionBefore(all, to)
	}
	if len(names) > 1 {
		if to, err = pickRevision(s, all, names[1]); err != nil {
			return nil, nil, err
		}
	}
	if from == nil || to == nil {
		return nil, nil, fmt.Errorf("%s has no two revisions to compare\n  to see its history: %s", s.Name, s.Hints.History)
	}
	return from, to, nil
}

// revisionBefore returns the newest revision with a lower number.
func revisionBefore(all []*pb.Revision, than *pb.Revision) *pb.Revision {
	for _, r := range all {
		if than != nil && r.GetNumber() < than.GetNumber() && r.GetNumber() > 0 {
			return r
		}
	}
	return nil
}
