// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package output writes the results and the progress of commands: text for terminals and logs, documents for programs.
//
//	var flags output.Flags
//	flags.Add(cmd) // -o
//	printer := flags.NewPrinter(os.Stdout, os.Stderr)
//	h := &host.Host{Driver: client, Observe: printer.Observe}
package output
