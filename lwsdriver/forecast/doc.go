// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package forecast says what a release will do before it does it. It is pure: values in, a [pb.PlanResponse] out.
//
// It has no arithmetic of its own about batches, promotion or rollback: it lets the planner of package plan, the one that
// drives real releases, work on a small world in memory, in which package native plays LeaderWorkerSet and the
// StatefulSet controller, and writes down what happens. So a forecast can't disagree with what the driver decides. In that
// world every group takes the start-up time and becomes ready, there is room for all, gateways follow at once, and
// nobody else touches anything.
package forecast
