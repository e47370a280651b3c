// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package view shows releases: as a status that is redrawn in place, as plain lines, or as JSON and YAML documents. The text
// is a pure function of a BatchContext and a time ([Status], [Progress]). The printers ([Lines], [Live], [Documents]) take
// events, and decide when to write it.
//
//	lines := view.NewLines(os.Stdout, time.Now(), false)
//	defer lines.Close()
//	h := &host.Host{Driver: client, Observe: lines.Observe}
package view
