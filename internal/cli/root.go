// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

const about = `Lockstep rolls out LeaderWorkerSet workloads in whole groups of pods, batch by batch.
A host decides when: a person, a pipeline or a controller. Lockstep decides how. The program runs in four ways:

  As a plugin      Argo Rollouts, or a host that is written with Lockstep's Go SDK, starts this binary by itself; there is
                   nothing to run by hand.
  As a controller  lockstep kruise
                   Kruise Rollouts releases LeaderWorkerSets through RolloutTargets.
  As a server      lockstep serve
                   Hosts connect to a unix socket or to loopback, or from elsewhere with mutual TLS.
  As a command     lockstep release, status, promote, abort ...
                   One release, driven by a person or a pipeline.
`

// newRootCommand puts the commands together.
func newRootCommand(o *options) *cobra.Command {
	root := &cobra.Command{
		Use:     "lockstep",
		Short:   "Progressive delivery for LeaderWorkerSet workloads",
		Long:    about,
		Version: version(),
		// Errors are printed once, by Program.Run, and a command that failed at run time needs no usage text.
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageErrorf("unknown command %q; see lockstep --help", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\nSee lockstep --help for commands and flags.\n", about)
			return err
		},
	}
	root.SetOut(o.stdout)
	root.SetErr(o.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageErrorf("%w; see %s --help", err, cmd.CommandPath())
	})
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	o.addFlags(root.PersistentFlags())
	for _, newCommand := range commands() {
		root.AddCommand(newCommand(o))
	}
	return root
}

// commands are the constructors of all subcommands.
func commands() []func(*options) *cobra.Command {
	return []func(*options) *cobra.Command{
		newServeCommand,
		newReleaseCommand,
		newPlanCommand,
		newPreflightCommand,
		newStatusCommand,
		newWatchCommand,
		newPictureCommand,
		newDebugCommand,
		newHistoryCommand,
		newDiffCommand,
		newPromoteCommand,
		newAbortCommand,
		newUndoCommand,
		newAdoptCommand,
		newDisownCommand,
		newKruiseCommand,
		newBatchReleaseCommand,
		newInstallCommand,
		newChecksumCommand,
		newVersionCommand,
		newExitCodesTopic,
	}
}
