// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
)

var update = flag.Bool("update", false, "write docs/reference-cli.md")

// docs/reference-cli.md has the help of each command: `make generate` writes it.
func TestReference(t *testing.T) {
	t.Parallel()
	const path = "../../docs/reference-cli.md"
	want := reference(newRootCommand(&connect.Options{Stdout: &buffer{}, Stderr: &buffer{}}))
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("docs/reference-cli.md is stale, run make generate (-commands +file):\n%s", diff)
	}
}

func reference(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString("# Commands and flags\n\nReference of every command, generated from its help. [The command line](cli.md) explains them, with outputs and\nexit codes.\n")
	var write func(*cobra.Command)
	write = func(cmd *cobra.Command) {
		if cmd.Runnable() && !cmd.Hidden {
			fmt.Fprintf(&b, "\n## %s\n\n%s\n\n```text\n%s\n", cmd.CommandPath(), strings.TrimSpace(longOf(cmd)), cmd.UseLine())
			if flags := usages(cmd.NonInheritedFlags()); flags != "" {
				fmt.Fprintf(&b, "\n%s\n", flags)
			}
			b.WriteString("```\n")
			if cmd.Example != "" {
				fmt.Fprintf(&b, "\n```text\n%s\n```\n", dedent(cmd.Example))
			}
		}
		for _, sub := range cmd.Commands() {
			write(sub)
		}
	}
	write(root)
	fmt.Fprintf(&b, "\n## Flags of every command\n\n```text\n%s\n```\n", usages(root.PersistentFlags()))
	return b.String()
}

func longOf(cmd *cobra.Command) string {
	if cmd.Long == "" {
		return cmd.Short + "."
	}
	return cmd.Long
}

// usages returns the help of flags, without what depends on the environment.
func usages(flags *pflag.FlagSet) string {
	if f := flags.Lookup("listen"); f != nil && strings.HasPrefix(f.DefValue, "unix:") {
		f.DefValue = ""
	}
	var lines []string
	for line := range strings.Lines(flags.FlagUsages()) {
		lines = append(lines, strings.TrimRight(line, " \n"))
	}
	return strings.Join(lines, "\n")
}

func dedent(text string) string {
	var lines []string
	for line := range strings.Lines(strings.TrimRight(text, "\n")) {
		lines = append(lines, strings.TrimPrefix(strings.TrimRight(line, "\n"), "  "))
	}
	return strings.Join(lines, "\n")
}
