// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/cli/session"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
)

const statusAbout = `Show a workload's release, batch and traffic, and a tree of its revisions, batches and groups. It also works without a release.
It changes nothing, whatever is pending: a driver inside this process is read-only. The exit code reports whether the status
could be read, not whether the release succeeds.

With --wait it follows the status, and returns 0 once LeaderWorkerSet has observed the template that the API server has when the
command starts, or a later one, every group runs it and is ready, and no release is in flight. Until then a template that is held
waits, whether or not a driver or host runs. It returns 3 or 4 at once if the release of that template has failed or is rolled
back, and 1 after the time, naming what it waits for and who releases it. It needs permission to read only.`

func newStatusCommand(o *connect.Options) *cobra.Command {
	f := session.Flags{RetryFor: session.ShortRetry, ReadOnly: true}
	var watch, all bool
	var wait time.Duration
	cmd := f.Command(o, &cobra.Command{
		Use:     "status NAME",
		Short:   "Show the status of a workload and its release",
		Long:    statusAbout,
		Example: "  lockstep status vllm\n  lockstep status vllm -w\n  lockstep status vllm --wait=2h\n  lockstep status vllm -o json",
	}, func(s *session.Session) error {
		switch {
		case wait > 0:
			return awaitRelease(s, o, wait)
		case watch:
			return s.Explain(s.Host.Follow(s.Context, s.Ref, s.Status), "watch")
		default:
			return showStatus(s, all)
		}
	})
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		switch waits := cmd.Flags().Changed("wait"); {
		case waits && wait <= 0:
			return exit.Usagef("--wait %s: want more than 0, for example 2h", wait)
		case waits && watch:
			return exit.Usagef("--wait and --watch exclude each other")
		case waits && f.Dial.Address != "":
			return exit.Usagef("--wait reads the API server itself: leave out --address")
		default:
			return nil
		}
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "follow it until Ctrl-C")
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait until the template in the spec is released, at most so long: --wait=DURATION")
	cmd.Flags().Lookup("wait").NoOptDefVal = "1h"
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
	_, err = fmt.Fprint(s.Text, view.Status(c, time.Now(), all))
	return err
}
