// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package observe reads workloads from caches. It never writes.
//
// An [Observer] runs the informers of LeaderWorkerSets, pods, ControllerRevisions and autoscalers, and
// the router's. Their transforms drop most of each object. [Observer.Observe] returns a [Snapshot]: the observation that package
// plan decides from, and the cached objects that package apply bases its write on.
//
//	o := observe.New(observe.Config{ /* clients and callbacks */ })
//	go o.Run(ctx)
//	...
//	s, err := o.Observe(key)
//	decision, err := plan.Decide(s.Observation, nil)
//
// The API server is read by lists and watches only. Other state in memory is lost on a restart, which is
// safe: when a group was first ready and when it was lost, when a drain began, and the policy of a release in place whose
// record was removed.
// [Observer.Changes] signals each change of the caches and of the leaders' answers.
package observe
