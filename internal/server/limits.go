// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/lockstep-rollouts/lockstep/plugin/encoded"
	"github.com/lockstep-rollouts/lockstep/plugin/endpoint"
)

const (
	// maxStreams bounds the calls in flight of one connection; further ones wait. A host watches all workloads with one.
	maxStreams = 100
	// maxRequest is the largest request, in bytes, and maxHeaders the largest list of headers. The window is what a call may send before
	// its request is read: gRPC does not grow it.
	maxRequest = window
	window     = 64 << 10
	maxHeaders = 32 << 10
	// bufferSize is that of each connection for reads, and for writes while it writes.
	bufferSize = 8 << 10
	// maxReading bounds the calls whose request has not been read, and so what they hold: 64 MiB. maxSourceReading bounds those of one
	// user, or of one address before its user is known.
	maxReading, maxSourceReading = 1024, maxStreams
	// maxCalls bounds the calls in flight, and maxUserCalls those of one user, or of the service accounts of a namespace.
	maxCalls, maxUserCalls = 2048, 256
	// maxAnonymous bounds the calls in flight that need no credentials, and maxSourceAnonymous those of one address.
	maxAnonymous, maxSourceAnonymous = 256, 32
	// maxPlans bounds the concurrent calls that compute for up to seconds and take tens of MiB, and maxLists the concurrent answers with a row
	// for each group. Further calls wait, at most for slotTimeout: a client that does not read holds a slot until sendTimeout.
	maxPlans, maxLists = 2, 16
	slotTimeout        = 30 * time.Second
	// turnTimeout bounds that wait for the answer of a call whose intent is recorded: less than the driver keeps for it.
	turnTimeout = 200 * time.Millisecond
	// readTimeout ends calls whose request does not arrive, sendTimeout those whose client does not read.
	readTimeout, sendTimeout = 10 * time.Second, 10 * time.Second
	// maxNamespace is the longest name of a namespace: longer ones are not asked about, since answers are cached.
	maxNamespace = 63
	// handshakeTimeout closes connections that do not complete the handshakes of TLS and HTTP/2.
	handshakeTimeout = 10 * time.Second
	// idleTimeout closes TCP connections without a call in flight.
	idleTimeout = 15 * time.Minute
	// DefaultUserQPS is Options.UserQPS if that is 0: a host with hundreds of releases makes a few calls a second.
	DefaultUserQPS = 100
	// maxAge is when a TCP client must connect again, so that one whose certificate was revoked or has expired does not stay.
	maxAge = time.Hour
	// maxAgeGrace is how long calls in flight may take after that: the longest `wait` is 10 minutes. Watches then connect again.
	maxAgeGrace = 11 * time.Minute
	// minPing is the minimum interval of a client's pings; that of plugin.Dial is longer.
	minPing = 10 * time.Second
	// pingTime and pingTimeout end connections of clients that are gone.
	pingTime, pingTimeout = time.Minute, 20 * time.Second
)

// limitOptions returns the options that bound what clients of the address may use. Those of a unix socket are processes of one user,
// so that their connections do not age.
func limitOptions(e endpoint.Endpoint) []grpc.ServerOption {
	alive := keepalive.ServerParameters{Time: pingTime, Timeout: pingTimeout}
	if !isUnix(e) {
		alive.MaxConnectionIdle = idleTimeout
		alive.MaxConnectionAge, alive.MaxConnectionAgeGrace = maxAge, maxAgeGrace
	}
	return []grpc.ServerOption{
		grpc.MaxConcurrentStreams(maxStreams), grpc.MaxRecvMsgSize(maxRequest), grpc.MaxHeaderListSize(maxHeaders),
		grpc.StaticStreamWindowSize(window), grpc.StaticConnWindowSize(window),
		grpc.ForceServerCodecV2(answerCodec{encoded.Codec()}),
		grpc.ReadBufferSize(bufferSize), grpc.WriteBufferSize(bufferSize),
		grpc.ConnectionTimeout(handshakeTimeout), grpc.KeepaliveParams(alive),
		// Hosts keep idle connections alive between steps, so pings without a call are allowed.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
	}
}

func isUnix(e endpoint.Endpoint) bool { return e.Network == "unix" }
