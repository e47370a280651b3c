// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package capacity says what groups of a LeaderWorkerSet take of a cluster, and whether a ResourceQuota holds that. It
// is pure: objects in, numbers out.
//
// It goes by the pod templates. What admission adds to pods later is not seen: defaults of a LimitRange, the overhead of
// a RuntimeClass, the cluster's default PriorityClass, what webhooks inject.
package capacity
