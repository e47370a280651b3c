// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package simulate forecasts a release before it begins: values in, a [pb.PlanResponse] out, without I/O.
//
//	response, err := simulate.Release(simulate.Input{Replicas: 4, Policy: policy, New: next, Old: now, Startup: 2 * time.Minute})
//
// [Release] forecasts a release by a policy, and [Native] the workload's own rolling update. The package has no arithmetic
// of its own about batches, promotion or rollback. It runs the planner of package plan, the one that drives real releases,
// on a small world in memory, where package native stands in for LeaderWorkerSet and the StatefulSet controller, and
// records what happens. So a forecast cannot disagree with the driver's decisions. In that world every group takes the
// start-up time and becomes ready, there is room for all of them, gateways follow at once, and no other client writes.
package simulate
