// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package replay records the planner's decisions, and replays them.
//
//	r := &replay.Recorder{To: file}
//	r.Record(observation, intent, decision, refusal)
//
// A recording is JSON lines, one [Entry] each: what the driver observed, what a caller requested, and what the planner
// decided. Since the planner is pure, an observation always leads to the same decision. So the copied recording of a
// failure is a test, and a recording shows where another version decides otherwise. A [Recorder] writes entries while a
// driver works, [Read] reads them, and [Entry.Replay] decides again.
//
// Recordings have no pod templates, and no annotations but Lockstep's own.
package replay
