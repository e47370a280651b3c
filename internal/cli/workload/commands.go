// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"github.com/spf13/cobra"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
)

// Commands returns the commands.
func Commands(o *connect.Options) []*cobra.Command {
	return []*cobra.Command{
		newReleaseCommand(o),
		newPlanCommand(o),
		newPreflightCommand(o),
		newStatusCommand(o),
		newWatchCommand(o),
		newDebugCommand(o),
		newHistoryCommand(o),
		newPromoteCommand(o),
		newAbortCommand(o),
		newUndoCommand(o),
		newAdoptCommand(o),
		newDisownCommand(o),
	}
}

// complete registers the values that the shell offers for a flag.
func complete(cmd *cobra.Command, flag string, values ...string) {
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
}
