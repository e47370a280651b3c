// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"net"
	"time"

	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/lockstep-rollouts/lockstep/plugin/endpoint"
)

const (
	// maxConnections bounds the connections of a TCP listener; further ones wait. The metrics address has a bound of its own, so
	// that clients cannot lock out probes.
	maxConnections = 1024
	// maxStreams bounds the calls in flight of one connection; further ones wait.
	maxStreams = 1024
	// maxRequest is the largest request, in bytes, and maxHeaders the largest list of headers.
	maxRequest = 1 << 20
	maxHeaders = 32 << 10
	// handshakeTimeout closes connections that do not complete the handshakes of TLS and HTTP/2.
	handshakeTimeout = 10 * time.Second
	// idleTimeout closes TCP connections without a call in flight.
	idleTimeout = 15 * time.Minute
	// DefaultMaxConnectionAge is Options.MaxConnectionAge if that is 0.
	DefaultMaxConnectionAge = time.Hour
	// maxAgeGrace bounds how long calls in flight may take after that: the longest `wait` is 10 minutes.
	maxAgeGrace = 11 * time.Minute
	// minPing is the minimum interval of a client's pings; that of plugin.Dial is longer.
	minPing = 10 * time.Second
	// pingTime and pingTimeout end connections of clients that are gone.
	pingTime, pingTimeout = time.Minute, 20 * time.Second
)

// limits returns the options that bound what clients of the address may use. Those of a unix socket are processes of one user,
// so that their connections do not age.
func limits(e endpoint.Endpoint, o Options) []grpc.ServerOption {
	alive := keepalive.ServerParameters{Time: pingTime, Timeout: pingTimeout}
	if !isUnix(e) {
		alive.MaxConnectionIdle = idleTimeout
		alive.MaxConnectionAge = cmp.Or(o.MaxConnectionAge, DefaultMaxConnectionAge)
		alive.MaxConnectionAgeGrace = min(alive.MaxConnectionAge, maxAgeGrace)
	}
	return []grpc.ServerOption{
		grpc.MaxConcurrentStreams(maxStreams), grpc.MaxRecvMsgSize(maxRequest), grpc.MaxHeaderListSize(maxHeaders),
		grpc.ConnectionTimeout(handshakeTimeout), grpc.KeepaliveParams(alive),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
	}
}

// limitConnections bounds the connections of a TCP listener. A unix socket is left as it is: only one user can connect, and a
// wrapped connection would hide the peer's uid.
func limitConnections(l net.Listener, limit int) net.Listener {
	if l.Addr().Network() == "unix" {
		return l
	}
	return netutil.LimitListener(l, limit)
}

func isUnix(e endpoint.Endpoint) bool { return e.Network == "unix" }
