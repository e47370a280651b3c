// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package replay writes the planner's decisions down, and decides them again.
//
// A recording is JSON lines, one [Entry] each: what the driver observed, what a caller requested, and what the planner
// decided. Since the planner is pure, the same observation leads to the same decision whenever it is made, so a recording
// of a failure becomes a test by being copied, and shows where another version decides otherwise. A [Recorder] writes
// entries while a driver works, [Read] reads them, and [Entry.Replay] decides again.
//
// Recordings have no pod templates, and no annotations but Lockstep's own, unless a Recorder is told to keep them.
package replay
