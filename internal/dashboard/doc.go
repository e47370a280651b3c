// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package dashboard serves a web page with the releases that a driver reports, as they change. It has no endpoint that writes.
//
//	d := dashboard.New(client, namespace, shorten)
//	fmt.Println(d.URL(listener.Addr()))
//	err := d.Serve(ctx, listener)
//
// One stream of the driver serves all browsers, which get changes as server-sent events. A browser that reads slowly gets fewer
// states, always the newest, and delays no other. The page is HTML, CSS and one ES module, embedded in the binary.
package dashboard
