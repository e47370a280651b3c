// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package simulate forecasts a release before it begins: values in, a [pb.PlanResponse] out, without I/O.
//
//	response, err := simulate.Release(simulate.Input{Replicas: 4, Policy: policy, New: next, Old: now, Startup: 2 * time.Minute})
//
// The package has no arithmetic of its own for batches, promotion or rollback: it runs the planner of package plan, which drives
// real releases, on an in-memory world and records what happens. Package native stands in for LeaderWorkerSet and the
// StatefulSet controller. So a forecast cannot disagree with the driver's decisions. In that world every group becomes
// ready after the start-up time, capacity is unlimited, gateways follow at once, and no other client writes.
package simulate
