// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package traffic tests releases under real requests, through a real gateway (Traefik). Its tests have the build tag e2e and run
// in a network namespace of their own; README.md describes how the parts fit together.
package traffic
