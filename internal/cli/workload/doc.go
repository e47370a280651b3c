// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package workload has the commands about a LeaderWorkerSet. Release, promote, abort, undo, adopt and disown change it;
// status, watch, history, diff, picture and debug show it; plan and preflight check a release before it starts.
//
//	root.AddCommand(workload.Commands(options)...)
package workload
