// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"fmt"

	"github.com/pmezard/go-difflib/difflib"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/cli/session"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// contextLines is the number of lines around a difference, as in diff -u.
const contextLines = 3

func newDiffCommand(o *connect.Options) *cobra.Command {
	f := session.Flags{RetryFor: session.ShortRetry, ReadOnly: true}
	cmd := &cobra.Command{
		Use:   "diff NAME [REVISION] [REVISION]",
		Short: "Show how two templates of a workload differ",
		Long: `Show how two templates of a workload differ, as a unified diff of YAML, and nothing if they are equal. A revision is a number
or hash, as lockstep history shows them. It changes nothing.

- no revision: from the revision of the groups, or the previous one if that is equal, to the template in the spec: what a
  release would change
- one revision: from it to the template in the spec
- two revisions: from the first to the second`,
		Example: "  lockstep diff vllm\n  lockstep diff vllm 3\n  lockstep diff vllm 3 5",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || len(args) > 3 || args[0] == "" {
				return exit.Usagef("%s needs the name of one LeaderWorkerSet and at most two revisions, got %q", cmd.CommandPath(), args)
			}
			return nil
		},
		ValidArgsFunction: session.Names(o),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.Run(cmd, o, args[0], func(s *session.Session) error { return showDiff(s, args[1:]) })
		},
	}
	f.Dial.Add(cmd.Flags())
	return cmd
}

// showDiff compares revisions. There are at most two names.
func showDiff(s *session.Session, names []string) error {
	response, err := revisions(s, true)
	if err != nil {
		return err
	}
	from, to, err := pair(s, response.GetRevisions(), names)
	if err != nil {
		return err
	}
	text, err := diff(from, to)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(s.Stdout, text)
	return err
}

// pair returns the revisions to compare. The first of all is the newest.
func pair(s *session.Session, all []*pb.Revision, names []string) (from, to *pb.Revision, err error) {
	for _, r := range all {
		if r.GetCurrent() {
			to = r
		}
		if r.GetStable() && from == nil {
			from = r
		}
	}
	if len(names) > 0 {
		if from, err = pick(s, all, names[0]); err != nil {
			return nil, nil, err
		}
	} else if from == to {
		from = before(all, to)
	}
	if len(names) > 1 {
		if to, err = pick(s, all, names[1]); err != nil {
			return nil, nil, err
		}
	}
	if from == nil || to == nil {
		return nil, nil, fmt.Errorf("%s has no two revisions to compare\n  to see its history: %s", s.Name, s.Hints.History)
	}
	return from, to, nil
}

// before returns the newest revision with a lower number.
func before(all []*pb.Revision, than *pb.Revision) *pb.Revision {
	for _, r := range all {
		if than != nil && r.GetNumber() < than.GetNumber() && r.GetNumber() > 0 {
			return r
		}
	}
	return nil
}

// diff returns the unified diff of two templates as YAML, empty if they are the same.
func diff(from, to *pb.Revision) (string, error) {
	d := difflib.UnifiedDiff{Context: contextLines}
	for _, side := range []struct {
		revision *pb.Revision
		name     *string
		lines    *[]string
	}{{from, &d.FromFile, &d.A}, {to, &d.ToFile, &d.B}} {
		if side.revision.GetTemplate() == "" {
			return "", fmt.Errorf("the template of revision %s can't be read", revisionName(side.revision))
		}
		text, err := yaml.JSONToYAML([]byte(side.revision.GetTemplate()))
		if err != nil {
			return "", fmt.Errorf("read the template of revision %s: %w", revisionName(side.revision), err)
		}
		*side.name, *side.lines = "revision "+revisionName(side.revision), difflib.SplitLines(string(text))
	}
	text, err := difflib.GetUnifiedDiffString(d)
	if err != nil {
		return "", fmt.Errorf("compare revisions %s and %s: %w", revisionName(from), revisionName(to), err)
	}
	return text, nil
}
