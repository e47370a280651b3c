// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package preflight finds what of a LeaderWorkerSet and its surroundings will cause trouble in a release: an Inventory of objects
// in, findings out, no I/O. The objects come from a cluster or from files.
//
//	answer := preflight.Check(&preflight.Inventory{Workload: w, Rolling: rolling, Policy: policy})
//
// A rule is an entry of a table (check.go): an id, a severity, why it matters, what to do, the sources that it reads, and a
// function that finds it. A rule whose source could not be read is reported as unchecked. To add a rule, add an entry, and
// testdata/ID with a manifest that fails and one that passes, which tests require; make generate adds it to docs/reference-preflight.md.
package preflight
