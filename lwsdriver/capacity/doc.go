// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package capacity computes what groups of a LeaderWorkerSet request, and whether they fit ResourceQuotas and nodes. It is pure:
// objects in, numbers out.
//
// It uses the pod templates. What admission adds to pods is unknown: defaults of a LimitRange, the overhead of a RuntimeClass,
// the cluster's default PriorityClass, what webhooks inject.
package capacity
