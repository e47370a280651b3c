// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apply makes the writes of the planner's actions.
//
//	applier := apply.New(core, sets, generic, observer)
//	wrote, err := applier.Apply(ctx, snapshot, decision.Action)
//
// Each action is one request to the API server, on condition that the objects of the [observe.Snapshot] which the decision was
// based on have not changed. If one has changed, Apply returns a conflict, and the caller observes again. [Applier.Apply] returns once the
// observer's caches show the write, so that no later observation is older.
package apply
