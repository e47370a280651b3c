// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// newStatusCommand makes `lockstep status`.
func newStatusCommand(o *options) *cobra.Command {
	t := target{patience: shortPatience, readOnly: true}
	var watch bool
	cmd := &cobra.Command{
		Use:   "status NAME",
		Short: "Show where a workload and its release stand",
		Long: `Show where a workload stands: its release if it has one, its batch, its traffic, and one row per group.
It changes nothing, and a driver inside this process only looks. The exit code says whether the status could be read, not whether the release is well.`,
		Example:           "  lockstep status vllm\n  lockstep status vllm -w\n  lockstep status vllm -o json",
		Args:              oneName,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return t.run(cmd, o, args[0], func(s *session) error {
				if watch {
					return s.explain(s.host.Follow(s.ctx, s.ref, s.follow), "watch")
				}
				return s.showStatus(o)
			})
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "follow it until Ctrl-C")
	t.dial.add(cmd)
	t.output.add(cmd, false)
	return cmd
}

// showStatus prints where the workload stands.
func (s *session) showStatus(o *options) error {
	c, err := s.host.Look(s.ctx, s.ref)
	if err != nil {
		return s.explain(err, "read the status of")
	}
	if s.documents != nil {
		s.documents.Status(c, time.Now())
		return nil
	}
	_, err = fmt.Fprint(o.stdout, view.Status(c, time.Now()))
	return err
}

// follow shows one more context. Programs get documents only: nothing happens here that people need to be told of.
func (s *session) follow(c *pb.BatchContext) {
	if s.documents != nil {
		s.documents.Status(c, time.Now())
		return
	}
	s.people(host.Event{Kind: view.EventStatus, Time: time.Now(), Context: c})
}
