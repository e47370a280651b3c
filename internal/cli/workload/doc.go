// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package workload has the commands about a LeaderWorkerSet: those that release it (release, promote, abort, undo, adopt,
// disown), those that show it (status, watch, history, diff, picture, debug), and those that say what a release would do
// (plan, preflight).
//
//	root.AddCommand(workload.Commands(options)...)
package workload
