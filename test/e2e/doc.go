// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package e2e tests releases on a real control plane. The driver is the built binary, a child process with its own
// least-privilege service account; the tests call it over the SDK like any host.
//
// While a test runs, an [observer.Observer] records the objects of its namespace. At the end its events, in the order of their resource
// versions, yield every state that the cluster went through, and the safety rules are checked in each. The rules are implemented a
// second time here, on purpose: nothing of the driver is reused.
//
// Everything is behind the build tag e2e. Run a part of it with -run, for example '^TestCanary'.
package e2e
