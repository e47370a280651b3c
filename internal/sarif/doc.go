// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sarif writes the findings of preflight as a SARIF 2.1.0 log, which code hosts and editors show beside the lines
// that they are about. It does no I/O.
package sarif
