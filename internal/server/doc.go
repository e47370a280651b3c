// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package server serves a driver on an address of its own, for hosts that don't start it as a plugin.
//
// What listens beyond this machine is authenticated on both sides, or does not listen. Health says NOT_SERVING until
// the driver's caches are filled, and again once the server is ending. Nothing here knows Kubernetes.
package server
