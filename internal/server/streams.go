// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// streamEnder ends all streams when the server does. They have no end of their own, and each message of a Watch is
// complete, so nothing is lost.
type streamEnder struct {
	ended chan struct{}
}

func newStreamEnder() *streamEnder {
	return &streamEnder{ended: make(chan struct{})}
}

// end is called once.
func (e *streamEnder) end() { close(e.ended) }

// intercept cancels the handler's context at the end, and tells the client that it may try again.
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
		return status.Error(codes.Unavailable, "the server is ending; connect again")
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
