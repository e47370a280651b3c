// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package traffic proves with real requests, through a real gateway (Traefik), what releases do to them. Its tests are behind
// the build tag e2e and run in a network namespace of their own; README.md says how the parts fit together.
package traffic
