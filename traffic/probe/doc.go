// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package probe makes the requests to leader pods that a release waits for: the warm-up, which a new leader must answer
// before it gets traffic, and the metric that says whether a leader which lost its traffic still works on requests.
//
// [Prober.Warm] and [Prober.Drain] never block. They begin work in the background, tell how it stands, and are asked
// again; what nobody asks about ends by itself. [OnChange] says when to ask, [Progress.Recheck] when to ask at the
// latest. The package takes addresses and knows nothing of Kubernetes.
//
// Everything that a leader does not answer well counts as unfinished. There are two ways out, both told in the message:
// a leader to which no connection can be made at all works on nothing, and a drain ends at its timeout.
package probe
