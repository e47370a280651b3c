// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package preflight says what of a LeaderWorkerSet, and of what is around it, will hurt when it is released: a Snapshot of
// objects in, findings out, no I/O. Where the objects come from, a cluster or files, is nobody's business here.
//
// A rule is an entry of a table (rules.go): an id, a severity, why it matters, what to do, what it has to look at, and a
// function that finds it. One that could not look says so, instead of having found nothing. To add a rule, add an entry, a
// section of docs/preflight.md, and testdata/ID with a manifest that fails and one that passes; tests want all three.
package preflight
