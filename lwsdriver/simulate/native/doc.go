// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package native is a model of what happens to the groups of a LeaderWorkerSet without anybody's help: LWS v0.9.0's own
// rolling update, and the StatefulSet controller under it. It is pure: no client, no clock. Nothing in it is about
// Lockstep.
//
// A [Set] is one LeaderWorkerSet. Groups in it become ready when the caller says so, and [Set.Settle] then does all that
// the two controllers do until they wait again. [Roll] takes a Set through a whole update and returns its stages.
//
// A group is ready or it is not: the StatefulSet controller sees leader pods only, so where leaders become ready before
// their workers it goes on earlier than the model does.
package native
