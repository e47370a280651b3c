// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package connect has the flags of every command, and connects a command to its cluster and its driver: one at an address,
// or one inside the process.
//
//	link, err := flags.Connect(ctx, options) // --address, or else a driver inside
//	response, err := link.Adopt(link.Context, request)
//	err = link.Close()
package connect
