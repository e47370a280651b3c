// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package view shows releases: as a table that is redrawn in place, as plain lines, or as JSON and YAML documents.
//
// What is shown is a pure function of a BatchContext and a time ([Header], [Groups], [Progress]). The printers ([Lines],
// [Live], [Documents]) only decide when it is written; each takes the events of one run of a host.
package view
