// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/session"
	"github.com/lockstep-rollouts/lockstep/internal/host/screen"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
)

func newStatusCommand(o *connect.Options) *cobra.Command {
	f := session.Flags{RetryFor: session.ShortRetry, ReadOnly: true}
	var watch, all bool
	cmd := f.Command(o, &cobra.Command{
		Use:   "status NAME",
		Short: "Show the status of a workload and its release",
		Long: `Show a workload's release, batch and traffic, and a tree of its revisions, batches and groups. It also works without a release.
It changes nothing, whatever is pending: a driver inside this process is read-only. The exit code reports whether the status
could be read, not whether the release succeeds.`,
		Example: "  lockstep status vllm\n  lockstep status vllm -w\n  lockstep status vllm -o json",
	}, func(s *session.Session) error {
		if watch {
			return s.Explain(s.Host.Follow(s.Context, s.Ref, s.Status), "watch")
		}
		return showStatus(s, all)
	})
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "follow it until Ctrl-C")
	cmd.Flags().BoolVar(&all, "all", false, "show every ready group, not 8 per branch")
	f.Output.Add(cmd)
	return cmd
}

func showStatus(s *session.Session, all bool) error {
	c, err := s.Host.Look(s.Context, s.Ref)
	if err != nil {
		return s.Explain(err, "read the status of")
	}
	if s.HasDocuments() {
		s.Status(c)
		return nil
	}
	text := view.Status(c, time.Now(), all)
	if !screen.Unicode(os.Getenv) {
		text = view.ASCII(text)
	}
	_, err = fmt.Fprint(s.Text, text)
	return err
}
