// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package e2e takes releases through a real control plane: the built binary as a child process under its own
// least-privilege service account, driven over the SDK like any host would.
//
// While a test runs, an observer records the API server's own event streams of its namespace. At the end they are merged
// by resource version, which gives every instant that the cluster went through, and the order-of-effects rules are
// checked at each. The rules are written down a second time here, on purpose: nothing of the engine is reused.
//
// Everything is behind the build tag e2e. One part is run with -run, for example '^TestCanary'.
package e2e
