// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// newAdoptCommand makes `lockstep adopt`.
func newAdoptCommand(o *options) *cobra.Command {
	return holdCommand(o, cobra.Command{
		Use:   "adopt NAME",
		Short: "Hold a workload: from then on a template change waits for a release",
		Long: `Take a workload under hold at rest. From then on a change of its template moves no pod until it is released.
The user's own rolling-update settings are saved; promotion uses them, and disown puts them back.
Adopting an adopted workload repairs its hold. A release adopts by itself.`,
		Example: "  lockstep adopt vllm",
	}, "adopt", func(ctx context.Context, s *session) (pb.Action, []*pb.Warning, error) {
		response, err := s.Adopt(ctx, &pb.AdoptRequest{Workload: s.ref})
		return response.GetAction(), response.GetWarnings(), err
	}, [2]string{"held already; nothing changed", "held: a change of its template now waits for a release"})
}

// newDisownCommand makes `lockstep disown`.
func newDisownCommand(o *options) *cobra.Command {
	return holdCommand(o, cobra.Command{
		Use:   "disown NAME",
		Short: "Give a workload back: its own controller rolls it again",
		Long: `Give a workload back with its spec exactly as the user had it. A template change that waited under the hold is rolled
out by the workload's own controller from then on. Refused while a release is in flight, and while the user's own
maxUnavailable and maxSurge both round to 0 of the present replicas.`,
		Example: "  lockstep disown vllm",
	}, "disown", func(ctx context.Context, s *session) (pb.Action, []*pb.Warning, error) {
		response, err := s.Disown(ctx, &pb.DisownRequest{Workload: s.ref})
		return response.GetAction(), response.GetWarnings(), err
	}, [2]string{"not adopted; nothing changed", "given back: its own controller rolls it from now on"})
}

// holdCommand makes one of the two. said is what to say when nothing and when something was written.
func holdCommand(
	o *options, cmd cobra.Command, verb string,
	call func(context.Context, *session) (pb.Action, []*pb.Warning, error), said [2]string,
) *cobra.Command {
	t := target{patience: shortPatience}
	cmd.Args = oneName
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return t.run(cmd, o, args[0], func(s *session) error {
			var action pb.Action
			var warnings []*pb.Warning
			err := s.host.Retry(s.ctx, func(ctx context.Context) (err error) {
				action, warnings, err = call(ctx, s)
				return err
			})
			if err != nil {
				return s.explain(err, verb)
			}
			for _, w := range warnings {
				_, _ = fmt.Fprintf(o.stderr, "warning: %s [%s]\n", w.GetMessage(), w.GetCode())
			}
			text := said[0]
			if action == pb.Action_ACTION_CONFIGURED {
				text = said[1]
			}
			_, err = fmt.Fprintf(o.stdout, "%s: %s\n", s.name, text)
			return err
		})
	}
	t.dial.add(&cmd)
	return &cmd
}
