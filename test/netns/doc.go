// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package netns runs a program, such as a test binary, in its own network namespace.
//
// With [Main] ranges of addresses are local there: one server that listens on 0.0.0.0 answers for each address and sees which one was
// dialed.
//
//	func TestMain(m *testing.M) {
//		os.Exit(netns.Main(build, func() int { return cluster.Main(m, cluster.WithTraefik()) }, cluster.PodCIDR))
//	}
//
// With [MainOnNode] the program may run containers: its processes, mounts and cgroups are its own, too, and are gone when it ends, also
// if it is killed.
//
// It needs Linux, and for [Main] either root or unprivileged user namespaces. Where the machine allows neither, Main prints an error and
// returns a code other than 0: tests fail then, they are not skipped.
package netns
