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
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
)

var update = flag.Bool("update", false, "write docs/reference-cli.md")

// docs/reference-cli.md has the help of each command: `make generate` writes it.
func TestReference(t *testing.T) {
	t.Parallel()
	const path = "../../docs/reference-cli.md"
	want := reference(newRootCommand(&connect.Options{Stdout: &buffer{}, Stderr: &buffer{}}))
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o600))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Empty(t, cmp.Diff(want, string(got)), "docs/reference-cli.md is stale, run make generate (-commands +file)")
}

// group has flags that several commands share: the reference prints them once.
type group struct {
	title string
	flags *pflag.FlagSet
}

func reference(root *cobra.Command) string {
	connection := common(root, "adopt", "status")
	groups := []group{
		{"Policy flags", common(root, "plan", "preflight", "release").without(common(root, "history"))}, // which has no policy
		{"Connection flags", connection.FlagSet},
		{"Server flags", common(root, "serve", "kruise", "batchrelease").FlagSet},
	}
	var b strings.Builder
	b.WriteString("# Commands and flags\n\nReference of every command, generated from its help. " +
		"[The command line](cli.md) has outputs, and the course of a release.\n")
	var write func(*cobra.Command)
	write = func(cmd *cobra.Command) {
		switch {
		case cmd.IsAdditionalHelpTopicCommand():
			fmt.Fprintf(&b, "\n## lockstep help %s\n\n```text\n%s\n```\n", cmd.Name(), longOf(cmd))
		case cmd.Runnable():
			writeCommand(&b, cmd, root, groups)
		}
		for _, sub := range cmd.Commands() {
			write(sub)
		}
	}
	write(root)
	for _, g := range append(groups, group{"Flags of every command", root.PersistentFlags()}) {
		fmt.Fprintf(&b, "\n## %s\n\n```text\n%s\n```\n", g.title, usages(g.flags))
	}
	return b.String()
}

func writeCommand(b *strings.Builder, cmd, root *cobra.Command, groups []group) {
	fmt.Fprintf(b, "\n## %s\n\n%s\n\n```text\n%s\n", cmd.CommandPath(), strings.TrimSpace(longOf(cmd)), cmd.UseLine())
	own := flagSet{pflag.NewFlagSet("", pflag.ContinueOnError)}
	if cmd != root {
		own.AddFlagSet(cmd.NonInheritedFlags())
	}
	var links []string
	for _, g := range groups {
		rest := own.without(flagSet{g.flags})
		missing := flagSet{g.flags}.without(own)
		if count(rest) == count(own.FlagSet) {
			continue
		}
		link := fmt.Sprintf("[%s](#%s)", g.title, strings.ReplaceAll(strings.ToLower(g.title), " ", "-"))
		missing.VisitAll(func(f *pflag.Flag) { link += ", but no `--" + f.Name + "`" })
		links, own = append(links, link), flagSet{rest}
	}
	if flags := usages(own.FlagSet); flags != "" {
		fmt.Fprintf(b, "\n%s\n", flags)
	}
	b.WriteString("```\n")
	if len(links) > 0 {
		fmt.Fprintf(b, "\nAlso: %s.\n", strings.Join(links, "; "))
	}
	if cmd.Example != "" {
		fmt.Fprintf(b, "\n```text\n%s\n```\n", dedent(cmd.Example))
	}
}

// flagSet is a set of flags: two are the same if their names and usages are.
type flagSet struct{ *pflag.FlagSet }

// common returns the flags that all of the commands have.
func common(root *cobra.Command, names ...string) flagSet {
	var all flagSet
	for i, name := range names {
		cmd, _, err := root.Find([]string{name})
		if err != nil {
			panic(err)
		}
		of := flagSet{cmd.NonInheritedFlags()}
		if i > 0 {
			of = flagSet{all.filter(func(f *pflag.Flag) bool { return of.has(f) })}
		}
		all = of
	}
	return all
}

func (s flagSet) has(f *pflag.Flag) bool {
	other := s.Lookup(f.Name)
	return other != nil && other.Usage == f.Usage && other.DefValue == f.DefValue
}

func (s flagSet) without(other flagSet) *pflag.FlagSet {
	return s.filter(func(f *pflag.Flag) bool { return !other.has(f) })
}

func (s flagSet) filter(keep func(*pflag.Flag) bool) *pflag.FlagSet {
	out := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.VisitAll(func(f *pflag.Flag) {
		if keep(f) {
			out.AddFlag(f)
		}
	})
	return out
}

func count(flags *pflag.FlagSet) (n int) {
	flags.VisitAll(func(*pflag.Flag) { n++ })
	return n
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
