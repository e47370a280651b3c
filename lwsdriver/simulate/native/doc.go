// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package native models what happens to the groups of a LeaderWorkerSet by itself: LWS v0.9.0's rolling update, and the
// StatefulSet controller under it. It is pure: no client, no clock. It knows nothing of Lockstep.
//
// A [Set] is one LeaderWorkerSet. The caller makes its groups ready, and [Set.Reconcile] then does what the two controllers
// do until they wait again.
//
// A group is either ready or not. The StatefulSet controller only observes leader pods, so if leaders become ready before
// their workers it continues earlier than the model.
package native
