// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plugin is the SDK for both sides of the contract in proto/lockstep/v1alpha1. It imports no Kubernetes code.
//
// A driver calls [Serve] if [IsPlugin] reports that a host started it. A host calls [Launch] to start a driver's binary,
// or [Dial] to connect to one that runs as a server, and gets a [Client] with one method per RPC. The client reads the
// driver's capabilities once, returns an error for unsupported RPCs without calling the driver, and validates every response.
// [Follow] and [FollowWorkloads] keep a watch open across broken streams and restarts of the driver.
//
// Errors are gRPC status errors: [Reason] and [Retryable] read them, package drivererr builds them, and SPEC.md of the
// contract says what to do about each.
package plugin
