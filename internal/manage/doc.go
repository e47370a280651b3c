// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package manage is what the hosts with controllers share around their reconcilers: the manager that runs those for Kruise, the
// check that the cluster serves the kinds they need, and the source that watches workloads through the driver.
package manage
