// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package release holds the words of a release: what is recorded of it on the workload, the policy it follows, the
// target it is at, and the one home of batch arithmetic. Everything here is a value; nothing talks to a cluster.
package release
