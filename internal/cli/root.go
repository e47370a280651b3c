// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cli is the lockstep program: it parses the command line, and runs a plugin, a server, a controller or a command.
// A process whose environment has a host's plugin cookie is that host's plugin; its arguments are flags only.
//
//	program := cli.Program{Args: os.Args[1:], Stdout: os.Stdout, Stderr: os.Stderr, NewDriver: newDriver}
//	os.Exit(program.Run(ctx))
package cli

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/cli/workload"
	"github.com/lockstep-rollouts/lockstep/internal/compatibility"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const about = `Lockstep releases LeaderWorkerSets in whole groups of pods, batch by batch. A user or a pipeline drives a release with these
commands. Controllers launch the program as a plugin (Argo Rollouts), connect to a server (lockstep serve), or run inside it
(lockstep kruise). NAME is that of a LeaderWorkerSet; disaggregatedset/NAME is a DisaggregatedSet.
`

// otherwise has what does what users of other tools expect of a command or a flag.
var otherwise = map[string]string{
	"get":       "lockstep status lists workloads, lockstep status NAME shows one",
	"list":      "lockstep status lists workloads, with -A those of all namespaces",
	"ls":        "lockstep status lists workloads, with -A those of all namespaces",
	"describe":  "lockstep status NAME shows a workload, lockstep history NAME its releases",
	"pause":     "a release stays where it is when lockstep release is stopped with Ctrl-C; --no-promote stops it before the promotion",
	"resume":    "run the same lockstep release again: it resumes where it stopped; lockstep promote NAME ends it",
	"retry":     "repeat the command lockstep release",
	"suspend":   "lockstep adopt NAME holds the groups until a release",
	"reconcile": "a driver needs no request: lockstep status NAME shows what it does",
	"restart":   "lockstep restarts no groups: kubectl delete pod LEADER restarts one",
	"terminate": "lockstep abort NAME rolls back a running release, also while its gates are measured",
	"events":    "lockstep watch NAME shows what happens, kubectl events the events of the workload",
	"tree":      "lockstep status NAME shows the groups of a workload",
	"lint":      "lockstep preflight NAME checks the workload and the cluster before a release",
	"rollback":  "lockstep abort NAME ends a running release, lockstep undo NAME restores an earlier template",
	"cancel":    "lockstep abort NAME rolls back a running release",
	"stop":      "lockstep abort NAME rolls back a running release, Ctrl-C in lockstep release leaves it where it is",
	"set":       "change the template, for example with kubectl edit lws NAME, then lockstep release NAME",
	"delete":    "lockstep disown NAME removes the hold from a workload",
	"diff":      "lockstep history NAME --diff shows how templates differ, lockstep plan NAME what a release would do",
	"logs":      "lockstep watch shows releases as they change, lockstep history NAME how they ended",
	"--dry-run": "lockstep plan NAME shows what a release would do, without doing it",
	"--port":    "lockstep dashboard --listen 127.0.0.1:PORT chooses the port of the web page",
}

func newRootCommand(o *connect.Options) *cobra.Command {
	root := &cobra.Command{
		Use:     "lockstep",
		Short:   "Progressive delivery for LeaderWorkerSet workloads",
		Long:    about,
		Version: buildVersionOf(),
		// Program.Run prints errors, and a command that failed at run time needs no usage text.
		SilenceErrors:              true,
		SilenceUsage:               true,
		SuggestionsMinimumDistance: 2,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				suggested := "see lockstep --help"
				if names := cmd.SuggestionsFor(args[0]); len(names) > 0 {
					suggested = "did you mean " + strings.Join(names, " or ") + "?"
				}
				return exit.Usagef("unknown command %q: %s", args[0], cmp.Or(otherwise[args[0]], suggested))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\nSee lockstep --help for commands and flags.\n", about)
			return err
		},
	}
	// kubectl runs a program of that name as its plugin, and users type kubectl lockstep.
	if strings.HasPrefix(filepath.Base(os.Args[0]), "kubectl-") {
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl lockstep"}
	}
	root.SetOut(o.Stdout)
	root.SetErr(o.Stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		// Flags are parsed first, so a mistyped command fails at its flags.
		if words := cmd.Flags().Args(); cmd == root && len(words) > 0 {
			return cmd.Args(cmd, words) // the command is unknown, and so are its flags
		}
		if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok && otherwise["--"+unknown.GetSpecifiedName()] != "" {
			return exit.Usagef("%w: %s", err, otherwise["--"+unknown.GetSpecifiedName()])
		}
		return exit.Usagef("%w; see %s --help", err, cmd.CommandPath())
	})
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	o.AddFlags(root.PersistentFlags())
	cobra.CheckErr(root.RegisterFlagCompletionFunc("namespace", cobra.NoFileCompletions))
	root.AddCommand(allCommands(o)...)
	root.AddCommand(newFlagsTopic(root))
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		// A topic shows the flags that are hidden elsewhere.
		if !cmd.IsAdditionalHelpTopicCommand() {
			hideFlags(cmd)
		}
		help(cmd, args)
	})
	return root
}

// topic has flags that the help of a command leaves out, so that it fits a screen.
type topic struct {
	title string
	flags []string
}

// topics are shown by lockstep help flags.
var topics = []topic{
	{"Connection: the API server, and a driver in place of one inside the command", []string{
		"kubeconfig", "context", "address", "tls-ca", "tls-cert", "tls-key", "tls-server-name", "token-file", "retry-for",
	}},
	{"Logs", []string{"log-format", "log-level"}},
	{"A driver inside the command", connect.DriverFlags},
	{"Releases: the first two are fields of a policy file, the others are not part of the policy", []string{
		"min-ready", "progress-deadline", "weights", "canary-header", "canary-cookie", "on-gate-failure", "prometheus-config", "release-id",
	}},
}

// hideFlags leaves the flags of topics out of the help of a command. A server shows its own flags all the same.
func hideFlags(cmd *cobra.Command) {
	server := slices.Contains([]string{"serve", "kruise", "batchrelease"}, cmd.Name())
	hidden := false
	for _, t := range topics {
		for _, name := range t.flags {
			// A server's own flags are its configuration, so only inherited ones are hidden.
			if f := cmd.Flag(name); f != nil && (!server || cmd.InheritedFlags().Lookup(name) != nil) {
				f.Hidden, hidden = true, true
			}
		}
	}
	if hidden && cmd.HasParent() { // the root lists the topic itself
		cmd.Long = strings.TrimSpace(cmp.Or(cmd.Long, cmd.Short)) + "\n\nMore flags: lockstep help flags"
	}
}

// newFlagsTopic returns the help topic with the flags of topics.
func newFlagsTopic(root *cobra.Command) *cobra.Command {
	release, _, _ := root.Find([]string{"release"})
	var b strings.Builder
	b.WriteString("Flags that the help of a command leaves out. lockstep release has all of them.\n")
	for _, t := range topics {
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		for _, name := range t.flags {
			flags.AddFlag(release.Flag(name))
		}
		fmt.Fprintf(&b, "\n%s:\n%s", t.title, flags.FlagUsages())
	}
	return &cobra.Command{Use: "flags", Short: "Flags that the help of a command leaves out", Long: strings.TrimSpace(b.String())}
}

// allCommands returns all subcommands.
func allCommands(o *connect.Options) []*cobra.Command {
	return append(workload.Commands(o),
		newDashboardCommand(o),
		newServeCommand(o),
		newKruiseCommand(o),
		newBatchReleaseCommand(o),
		newInstallCommand(o),
		newCheckCommand(o),
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

// buildVersion is the output of `git describe`, which the Makefile makes the linker set. Empty in other builds.
var buildVersion string

// buildVersionOf returns buildVersion, or else the module's version as the Go command recorded it: a tag with
// `go install …@v1.2.3`, a pseudo-version in a checkout, "(devel)" if it recorded none.
func buildVersionOf() string {
	if buildVersion != "" {
		return buildVersion
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}

func newVersionCommand(o *connect.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of the program and the contract, and the tested versions of Kubernetes, LWS and the hosts",
		Long: `Print the versions of the program, of Go and of the contract, and those of Kubernetes, LeaderWorkerSet, the hosts and the
Gateway API that Lockstep is tested with, the default of the tests first. It contacts neither a cluster nor a driver.
lockstep --version prints only the program's.`,
		Example: "  lockstep version",
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return writeVersions(o) },
	}
}

func writeVersions(o *connect.Options) error {
	w := tabwriter.NewWriter(o.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "lockstep\t%s\nGo\t%s\ncontract\t%s\n\ntested with\n", buildVersionOf(), runtime.Version(),
		pb.File_lockstep_v1alpha1_driver_proto.Package())
	for _, c := range compatibility.All() {
		fmt.Fprintf(w, "%s\t%s\n", c.Name, strings.Join(c.Versions, ", "))
	}
	return w.Flush() //nolint:wrapcheck // the caller's own stream
}

// newInstallCommand is for init containers of hosts that launch the binary in their own pod: the image has no shell to copy
// it with.
func newInstallCommand(o *connect.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "install PATH",
		Short: "Copy this program to a path, for a host that launches it as a plugin",
		Long: `Copy this program to PATH and print the copy's SHA-256. It is for init containers of hosts that launch the program from a
directory of their own pod, because the image has no shell.`,
		Hidden: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return exit.Usagef("%s needs the path of the copy, got %q", cmd.CommandPath(), args)
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			sum, err := copyBinary(args[0])
			if err != nil {
				return fmt.Errorf("install: %w", err)
			}
			_, err = fmt.Fprintf(o.Stdout, "%x  %s\n", sum, args[0])
			return err
		},
	}
}

// copyBinary copies this program to path atomically, and returns its SHA-256. A copy that is running is replaced, not
// overwritten.
func copyBinary(path string) ([]byte, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	from, err := os.Open(program)
	if err != nil {
		return nil, err
	}
	defer func() { _ = from.Close() }()
	// A program that runs can't be written to, but a rename in the same directory replaces it.
	to, err := os.CreateTemp(filepath.Dir(path), ".lockstep-*")
	if err != nil {
		return nil, err
	}
	hash := sha256.New()
	_, err = io.Copy(io.MultiWriter(to, hash), from)
	err = errors.Join(err, to.Chmod(0o755), to.Close())
	if err == nil {
		err = os.Rename(to.Name(), path)
	}
	if err != nil {
		_ = os.Remove(to.Name())
		return nil, err
	}
	return hash.Sum(nil), nil
}
