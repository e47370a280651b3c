// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rollout decides what a Rollout asks of the driver: a resource of some host that has templates of its own, steps, and
// commands that abort, promote and retry. It knows no host. An adapter reads the host's resource ([Facts], [Config]) and calls
//
//   - [Target.Run] for a step;
//   - [Settle] whenever the resource or the workload changes, and [SettleNow] when the host must hear the result: it ends what the
//     host's commands end;
//   - [Register] to own a workload at rest.
//
// The decisions are pure functions of the facts, the configuration and the driver's BatchContext, and need no state of the process:
// an adapter that runs twice or starts over decides the same. Package argo is the adapter of Argo's Rollouts.
package rollout
