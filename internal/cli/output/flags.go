// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package output

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
)

// Flags choose the format of a command's output.
type Flags struct {
	// Format is the value of -o. Empty: text.
	Format view.Format

	formats []string
	final   bool
}

// Add registers -o. A command with an extra format writes one document; the others write one per event.
func (f *Flags) Add(cmd *cobra.Command, extra ...view.Format) {
	f.formats = []string{string(view.FormatJSON), string(view.FormatYAML)}
	usage := "write json (one object per line) or yaml documents to stdout, text to stderr"
	for _, format := range extra {
		f.formats = append(f.formats, string(format))
		usage = "write a json, yaml or " + string(format) + " document to stdout"
	}
	cmd.Flags().StringVarP((*string)(&f.Format), "output", "o", "", usage)
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(f.formats, cobra.ShellCompDirectiveNoFileComp)))
}

// AddFinal registers --final, for commands that write more than one document.
func (f *Flags) AddFinal(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.final, "final", false, "with -o: only the last document")
}

// Check returns an error for a format that the command does not have.
func (f *Flags) Check() error {
	switch {
	case f.Format == "" && f.final:
		return exit.Usagef("--final needs -o json or -o yaml")
	case f.Format != "" && !slices.Contains(f.formats, string(f.Format)):
		last := len(f.formats) - 1
		return exit.Usagef("--output %q: want %s or %s", f.Format, strings.Join(f.formats[:last], ", "), f.formats[last])
	default:
		return nil
	}
}
