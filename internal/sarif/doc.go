// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sarif encodes preflight findings as a SARIF 2.1.0 log, which code hosts and editors show at the lines of a file. It
// does no I/O.
//
//	log, err := sarif.Preflight("v1.2.3", response, set.Locate)
package sarif
