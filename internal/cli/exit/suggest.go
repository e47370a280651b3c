// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package exit

import (
	"strings"

	"github.com/spf13/cobra"
)

// Typos is the edit distance up to which a name is suggested.
const Typos = 2

// DidYouMean returns ", did you mean x?" for the known names that are similar to an unknown one, each after a prefix, or "". It uses
// cobra's suggestions, which are for commands only.
func DidYouMean(prefix, unknown string, known []string) string {
	names := &cobra.Command{SuggestionsMinimumDistance: Typos}
	for _, name := range known {
		names.AddCommand(&cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}})
	}
	return Suggest(prefix, names.SuggestionsFor(unknown))
}

// Suggest returns ", did you mean x or y?", or "" without names.
func Suggest(prefix string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	return ", did you mean " + prefix + strings.Join(names, " or "+prefix) + "?"
}
