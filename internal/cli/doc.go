// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cli is the lockstep program: it parses the command line, and runs a plugin, a server, a controller or a command.
// A process whose environment has a host's plugin cookie is that host's plugin; its arguments are flags only.
//
//	program := cli.Program{Args: os.Args[1:], Stdout: os.Stdout, Stderr: os.Stderr, NewDriver: newDriver}
//	os.Exit(program.Run(ctx))
package cli
