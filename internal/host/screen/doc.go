// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package screen shows running releases full-screen: a list, and the details of the selected one. It is read-only.
//
// [Screen] is the state, without I/O and clock: Update takes messages, keys and the time, and View is a pure function of
// them. [Run] is the shell that shows it on a terminal.
//
//	s := screen.New(screen.Options{Namespace: "default"}, time.Now())
//	err := screen.Run(ctx, terminal, s, feed, choose)
package screen
