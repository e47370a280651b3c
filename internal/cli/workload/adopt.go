// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/session"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// newAdoptCommand makes `lockstep adopt`.
func newAdoptCommand(o *connect.Options) *cobra.Command {
	f := session.Flags{RetryFor: session.ShortRetry}
	return f.Command(o, &cobra.Command{
		Use:   "adopt NAME",
		Short: "Hold a workload: from then on a template change waits for a release",
		Long: `Take a workload under hold at rest. From then on a change of its template moves no pod until it is released.
The user's own rolling-update settings are saved; promotion uses them, and disown puts them back.
Adopting an adopted workload repairs its hold. A release adopts by itself.`,
		Example: "  lockstep adopt vllm",
	}, func(s *session.Session) error {
		response, err := session.Call(s, "adopt", s.Adopt, &pb.AdoptRequest{Workload: s.Ref})
		if err != nil {
			return err
		}
		return showHold(s, response, "held: a change of its template now waits for a release", "held already; nothing changed")
	})
}

// newDisownCommand makes `lockstep disown`.
func newDisownCommand(o *connect.Options) *cobra.Command {
	f := session.Flags{RetryFor: session.ShortRetry}
	return f.Command(o, &cobra.Command{
		Use:   "disown NAME",
		Short: "Give a workload back: its own controller rolls it again",
		Long: `Give a workload back with its spec exactly as the user had it. A template change that waited under the hold is rolled
out by the workload's own controller from then on. Refused while a release is in flight, and while the user's own
maxUnavailable and maxSurge both come to 0 of the present replicas.`,
		Example: "  lockstep disown vllm",
	}, func(s *session.Session) error {
		response, err := session.Call(s, "disown", s.Disown, &pb.DisownRequest{Workload: s.Ref})
		if err != nil {
			return err
		}
		return showHold(s, response, "given back: its own controller rolls it from now on", "not adopted; nothing changed")
	})
}

// showHold shows the answer to either: one text if something was written, another if nothing was.
func showHold(s *session.Session, response interface {
	GetAction() pb.Action
	GetWarnings() []*pb.Warning
}, written, unchanged string) error {
	s.Warn(response.GetWarnings()...)
	if response.GetAction() == pb.Action_ACTION_CONFIGURED {
		unchanged = written
	}
	_, err := fmt.Fprintf(s.Stdout, "%s: %s\n", s.Name, unchanged)
	return err
}
