// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plugintest helps to test drivers and hosts without a cluster and without another process.
//
// [Connect] puts a driver behind a real listener and returns the facade that hosts use, so a test sees what a host
// would see: codes, details, deadlines and validation. [Conformance] and [Idempotent] check the promises of SPEC.md
// against any driver. [FakeDriver] is a driver in memory, for tests of hosts.
package plugintest
