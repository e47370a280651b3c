// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gate decides by metrics whether a batch of a release may be followed by the next one.
//
// A [Gate] is a query, a range for its value, and how often to measure. [Parse] and [Template] make gates, a [Run] counts the
// measurements of one batch, and a [Prometheus] takes them. All but the last do no I/O.
//
// A value that Prometheus does not have is a failed measurement: missing metrics are no success. A query that Prometheus does not
// answer is neither: it is tried again, and fails its gate when Prometheus has not answered for too long.
package gate
