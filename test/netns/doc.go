// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package netns runs a whole program, tests included, in its own network namespace in which ranges of addresses are local:
// one server that listens on 0.0.0.0 answers for each address and sees which one was dialed.
//
//	func TestMain(m *testing.M) {
//		os.Exit(netns.Main(build, func() int { return cluster.Main(m, cluster.WithTraefik()) }, cluster.PodCIDR))
//	}
//
// It needs Linux, and either root or unprivileged user namespaces. Where the machine allows neither, Main prints an error and
// returns a code other than 0: tests fail then, they are not skipped.
package netns
