// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plan decides the one next thing to do for a workload. It is pure: an Observation in, a Decision out, with no
// client, clock, log or event, so that whole releases can be driven through it in tests, and so that a Decision can be
// explained from its Observation alone.
//
// A Decision has at most one Action, which is one write. The caller applies it, observes again and asks again, until
// there is nothing to write. Every Action is safe to repeat and safe to lose.
package plan
