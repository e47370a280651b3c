// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cli is the lockstep program: it parses the command line, and runs a plugin, a server, a controller or a command.
// A process whose environment has a host's plugin cookie is that host's plugin; its arguments are flags only.
//
//	program := cli.Program{Args: os.Args[1:], Stdout: os.Stdout, Stderr: os.Stderr, NewDriver: newDriver}
//	os.Exit(program.Run(ctx))
package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/cli/workload"
)

const about = `Lockstep releases LeaderWorkerSets in whole groups of pods, batch by batch.
A host decides when (a user, a pipeline or a controller), Lockstep decides how. The program runs as:

- a command (lockstep release, status, promote, abort ...): a user or a pipeline drives one release
- a server (lockstep serve): hosts connect to a unix socket or to loopback, or from elsewhere with TLS
- a controller (lockstep kruise): Kruise Rollouts releases LeaderWorkerSets through RolloutTargets
- a plugin: Argo Rollouts, or a host that uses Lockstep's Go SDK, launches it
`

func newRootCommand(o *connect.Options) *cobra.Command {
	root := &cobra.Command{
		Use:     "lockstep",
		Short:   "Progressive delivery for LeaderWorkerSet workloads",
		Long:    about,
		Version: version(),
		// Program.Run prints errors, and a command that failed at run time needs no usage text.
		SilenceErrors:              true,
		SilenceUsage:               true,
		SuggestionsMinimumDistance: 2,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				suggested := ""
				if names := cmd.SuggestionsFor(args[0]); len(names) > 0 {
					suggested = ", did you mean " + strings.Join(names, " or ") + "?"
				}
				return exit.Usagef("unknown command %q%s; see lockstep --help", args[0], suggested)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\nSee lockstep --help for commands and flags.\n", about)
			return err
		},
	}
	if strings.HasPrefix(filepath.Base(os.Args[0]), "kubectl-") {
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl lockstep"}
	}
	root.SetOut(o.Stdout)
	root.SetErr(o.Stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return exit.Usagef("%w; see %s --help", err, cmd.CommandPath())
	})
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	o.AddFlags(root.PersistentFlags())
	root.AddCommand(commands(o)...)
	return root
}

// commands returns all subcommands.
func commands(o *connect.Options) []*cobra.Command {
	return append(workload.Commands(o),
		newDashboardCommand(o),
		newServeCommand(o),
		newKruiseCommand(o),
		newBatchReleaseCommand(o),
		newInstallCommand(o),
		newVersionCommand(o),
		newExitCodesTopic(),
	)
}

// newExitCodesTopic returns a help topic.
func newExitCodesTopic() *cobra.Command {
	var b strings.Builder
	b.WriteString("lockstep exits with one of these codes:\n\n")
	for _, row := range exit.Meanings() {
		fmt.Fprintf(&b, "  %3d  %s\n", row.Code, row.Text)
	}
	return &cobra.Command{Use: "exit-codes", Short: "What lockstep's exit codes mean", Long: strings.TrimSpace(b.String())}
}
