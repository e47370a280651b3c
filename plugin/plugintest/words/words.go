// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package words reads the words of scenarios: KEY=VALUE, or KEY alone for what is true.
//
// A test defines each word as a flag, whose usage says what it means.
package words

import (
	"flag"
	"fmt"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// Set sets what define has defined a word for. An unknown word fails the test.
func Set(t testing.TB, words []datadriven.CmdArg, define func(*flag.FlagSet)) {
	t.Helper()
	flags := flag.NewFlagSet(t.Name(), flag.ContinueOnError)
	define(flags)
	args := make([]string, 0, len(words))
	for _, word := range words {
		args = append(args, "-"+word.String())
	}
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
}

// Line returns the first word of a line, and sets what the others mean.
func Line(t testing.TB, line string, define func(*flag.FlagSet)) string {
	t.Helper()
	first, words, err := datadriven.ParseLine(line)
	if err != nil {
		t.Fatal(err)
	}
	Set(t, words, define)
	return first
}

// Number sets a number.
func Number[T int32 | int64 | int | float64](into *T) func(string) error {
	return func(s string) error {
		_, err := fmt.Sscan(s, into)
		return err
	}
}

// Enum sets a value of a protobuf enum, by its name without the prefix.
func Enum[T ~int32](into *T, prefix string, values map[string]int32) func(string) error {
	return func(s string) error {
		value, known := values[prefix+s]
		if *into = T(value); !known {
			return fmt.Errorf("no %s%s", prefix, s)
		}
		return nil
	}
}
