// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plugintest helps to test drivers and hosts without a cluster and without another process.
//
// [Connect] serves a driver on a real listener and returns the client that hosts use, so that a test sees what a host
// sees: codes, details, deadlines and validation. [Conformance] and [Idempotent] check any driver against the promises
// of SPEC.md. [FakeDriver] is a driver in memory, for tests of hosts.
package plugintest
