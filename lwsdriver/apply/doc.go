// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apply makes the write that an action of the planner stands for.
//
//	applier := apply.New(core, sets, generic, observer)
//	wrote, err := applier.Apply(ctx, snapshot, decision.Action)
//
// Each action is one request to the API server. Its precondition is that the objects which the decision was based on, those
// of the [observe.Snapshot], have not changed: a lost race is a conflict, and the caller observes again. [Applier.Apply]
// returns once the observer's caches show the write, so that no later observation is older than it.
package apply
