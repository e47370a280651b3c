// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// streamed registers unary methods as streams with one message each way, which is the same on the wire. gRPC buffers the request of a
// unary method before any interceptor runs, and that of a stream when its handler receives it: after the review of the caller.
type streamed struct {
	grpc.ServiceRegistrar

	// before are called before the request is received, as those of streams are.
	before []grpc.StreamServerInterceptor
}

// RegisterService implements grpc.ServiceRegistrar.
func (s streamed) RegisterService(desc *grpc.ServiceDesc, impl any) {
	service := *desc
	// All servers of the process share the description, so a copy is changed.
	service.Methods, service.Streams = nil, slices.Clone(desc.Streams)
	for _, method := range desc.Methods {
		info := &grpc.StreamServerInfo{FullMethod: "/" + desc.ServiceName + "/" + method.MethodName}
		handler := func(srv any, stream grpc.ServerStream) error {
			// The handler decodes with RecvMsg, so the request is read only after the interceptors have run.
			response, err := method.Handler(srv, stream.Context(), stream.RecvMsg, nil)
			if err != nil {
				return err //nolint:wrapcheck // the driver's own
			}
			return stream.SendMsg(response)
		}
		for _, intercept := range slices.Backward(s.before) {
			next := handler
			handler = func(srv any, stream grpc.ServerStream) error { return intercept(srv, stream, info, next) }
		}
		// gRPC calls no interceptor for a stream that no side streams.
		service.Streams = append(service.Streams, grpc.StreamDesc{StreamName: method.MethodName, Handler: handler})
	}
	s.ServiceRegistrar.RegisterService(&service, impl)
}

// byKind returns an interceptor that treats such streams as the unary methods that they are for clients.
func byKind(unary grpc.UnaryServerInterceptor, streams grpc.StreamServerInterceptor) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if info.IsClientStream || info.IsServerStream {
			return streams(srv, stream, info, handler)
		}
		// Metrics count the call as unary, as its client sees it.
		_, err := unary(stream.Context(), nil, &grpc.UnaryServerInfo{Server: srv, FullMethod: info.FullMethod},
			func(ctx context.Context, _ any) (any, error) {
				return nil, handler(srv, contextStream{ServerStream: stream, ctx: ctx})
			})
		return err
	}
}

// endWith returns an interceptor that ends all streams when a context does: it cancels that of the handler, and returns UNAVAILABLE, so that
// the client reconnects. Streams don't end themselves, and lose nothing: each message of a watch is complete.
func endWith(server context.Context) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx, cancel := context.WithCancel(stream.Context())
		defer cancel()
		defer context.AfterFunc(server, cancel)()
		err := handler(srv, contextStream{ServerStream: stream, ctx: ctx})
		// A client that has gone, or whose deadline has passed, gets its own code.
		if err != nil && ctx.Err() != nil && stream.Context().Err() == nil {
			return status.Error(codes.Unavailable, "the server is shutting down; reconnect")
		}
		return err
	}
}

// contextStream is a stream with another context.
type contextStream struct {
	grpc.ServerStream

	ctx context.Context //nolint:containedctx // this is how gRPC hands a stream its context
}

// Context returns the context that ends with the server.
func (s contextStream) Context() context.Context { return s.ctx }

// answer is a message that tells when gRPC holds it no more. gRPC's own SendMsg returns before that: the first message of a stream never
// waits for the client.
type answer struct {
	message  any
	released chan struct{}
}

// answerCodec encodes answers.
type answerCodec struct{ encoding.CodecV2 }

// unpooled is larger than the buffers whose references gRPC does not count.
var unpooled [2 << 10]byte

// Marshal implements encoding.CodecV2.
func (c answerCodec) Marshal(v any) (mem.BufferSlice, error) {
	a, ok := v.(answer)
	if !ok {
		return c.CodecV2.Marshal(v) //nolint:wrapcheck // gRPC's own
	}
	data, err := c.CodecV2.Marshal(a.message)
	if err != nil {
		return nil, err //nolint:wrapcheck // gRPC's own
	}
	end := unpooled[:0]
	return append(data, mem.NewBuffer(&end, a)), nil
}

// Get implements mem.BufferPool.
func (answer) Get(int) *[]byte { return nil }

// Put implements mem.BufferPool. gRPC calls it once it has written or dropped the message.
func (a answer) Put(*[]byte) { close(a.released) }
