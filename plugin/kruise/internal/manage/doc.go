// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package manage is what the hosts for Kruise share around their reconcilers: the manager that runs them, the check of what the
// cluster serves, and the watch of workloads through the driver.
package manage
