// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Hints are command lines about the same workload and driver, ready to be pasted.
type Hints struct {
	Again, Status, Promote, Abort, History string
	// Stay is Again with --on-failure wait. Empty: the command has no such flag.
	Stay string
	// Inside is true if the driver is inside this process, with the user's own permissions.
	Inside bool
}

// HintsFor returns the hints of a parsed command line.
func HintsFor(cmd *cobra.Command, name string) Hints {
	line := func(verb string, keep func(flag string) bool) string {
		words := []string{cmd.Root().Name(), verb, name}
		cmd.Flags().Visit(func(f *pflag.Flag) {
			if keep(f.Name) {
				words = append(words, flagWords(f)...)
			}
		})
		return strings.Join(words, " ")
	}
	shared := []string{"kubeconfig", "context", "namespace", "address", "tls-cert", "tls-key", "tls-ca"}
	reach := func(flag string) bool { return slices.Contains(shared, flag) }
	h := Hints{
		Again:   line(cmd.Name(), func(string) bool { return true }),
		Status:  line("status", reach),
		Promote: line("promote", reach),
		Abort:   line("abort", reach),
		History: line("history", reach),
	}
	if f := cmd.Flags().Lookup("address"); f != nil {
		h.Inside = !f.Changed
	}
	if cmd.Flags().Lookup("on-failure") != nil {
		h.Stay = line(cmd.Name(), func(flag string) bool { return flag != "on-failure" }) + " --on-failure wait"
	}
	return h
}

// flagWords returns a flag as it is typed.
func flagWords(f *pflag.Flag) []string {
	value := f.Value.String()
	if list, ok := f.Value.(pflag.SliceValue); ok {
		value = strings.Join(list.GetSlice(), ",")
	}
	if f.Value.Type() == "bool" {
		if value == "true" {
			return []string{"--" + f.Name}
		}
		return []string{"--" + f.Name + "=" + value}
	}
	return []string{"--" + f.Name, quote(value)}
}

// quote returns a word that a POSIX shell reads as s.
func quote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("%+,-./:=@_", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
