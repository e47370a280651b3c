// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package probe makes the requests to leader pods that a release waits for: the warm-up, which must succeed before a new
// leader gets traffic, and the metric that shows whether a leader without traffic still has requests in flight.
//
// [Prober.Warm] and [Prober.Drain] never block. They start work in the background and return its [Progress]; [Prober.Keep]
// and [Prober.Forget] end it. [Config.Changed] reports when to poll, [Progress.Recheck] when to poll at the latest. The package takes addresses and does not depend on Kubernetes.
//
// Without a valid response, a leader does not count as done. There are two exceptions, both reported in the message: a leader that accepts
// no connections has no requests in flight, and a drain ends at its timeout.
package probe
