// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package server serves a driver over gRPC on an address of its own, for hosts that don't launch it as a plugin. Addresses
// that other machines can reach require mutual TLS. Health is SERVING while the driver's caches are synced.
//
//	s, err := server.New(ctx, driver, server.Options{Listen: "unix:///run/lockstep/lockstep.sock"})
//	err = s.Run(ctx)
package server
