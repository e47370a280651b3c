// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// streamEnder ends all streams with the server. Streams don't end themselves, and lose nothing: each message of a watch is
// complete.
type streamEnder struct {
	ended chan struct{}
}

func newStreamEnder() *streamEnder {
	return &streamEnder{ended: make(chan struct{})}
}

// end must be called once.
func (e *streamEnder) end() { close(e.ended) }

// intercept cancels the handler's context at the end, and returns UNAVAILABLE, so that the client reconnects.
func (e *streamEnder) intercept(
	srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-e.ended:
			cancel()
		case <-done:
		}
	}()
	err := handler(srv, contextStream{ServerStream: stream, ctx: ctx})
	if err != nil && ctx.Err() != nil && stream.Context().Err() == nil {
		return status.Error(codes.Unavailable, "the server is shutting down; reconnect")
	}
	return err
}

// contextStream is a stream with another context.
type contextStream struct {
	grpc.ServerStream

	ctx context.Context //nolint:containedctx // this is how gRPC hands a stream its context
}

// Context returns the context that ends with the server.
func (s contextStream) Context() context.Context { return s.ctx }
