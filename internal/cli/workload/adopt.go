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

func newAdoptCommand(o *connect.Options) *cobra.Command {
	f := session.Flags{RetryFor: session.ShortRetry}
	return f.Command(o, &cobra.Command{
		Use:   "adopt NAME",
		Short: "Put a workload under hold: template changes then wait for a release",
		Long: `Put a workload under hold. From then on a template change moves no pod until it is released.
The user's own rolling update settings are saved: promotion uses them, and disown restores them.
Adopting an adopted workload repairs its hold. A release adopts the workload itself.`,
		Example: "  lockstep adopt vllm",
	}, func(s *session.Session) error {
		response, err := session.Call(s, "adopt", s.Adopt, &pb.AdoptRequest{Workload: s.Ref})
		if err != nil {
			return err
		}
		return showHold(s, response, "under hold: template changes now wait for a release", "already under hold; nothing changed")
	})
}

func newDisownCommand(o *connect.Options) *cobra.Command {
	f := session.Flags{RetryFor: session.ShortRetry}
	return f.Command(o, &cobra.Command{
		Use:   "disown NAME",
		Short: "Remove the hold: template changes roll out natively again",
		Long: `Remove the hold and restore the user's spec exactly. The workload's own controller then rolls out a template change that
waited under hold. Refused while a release is in flight, and while the user's own
maxUnavailable and maxSurge both round to 0 of the present replicas.`,
		Example: "  lockstep disown vllm",
	}, func(s *session.Session) error {
		response, err := session.Call(s, "disown", s.Disown, &pb.DisownRequest{Workload: s.Ref})
		if err != nil {
			return err
		}
		return showHold(s, response, "disowned: template changes roll out natively again", "not adopted; nothing changed")
	})
}

// showHold shows one text if the driver wrote something, and another if nothing changed.
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
