// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package podserver

import (
	"context"
	"encoding/json"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Method is the gRPC method of pods, without TLS on the same port. The request is a StringValue with the duration of the call, or
// empty. The response is a StringValue with an [Answer] as JSON. A violation is an error UNAVAILABLE with the Answer as message.
const Method = "/lockstep.test.Pod/Ask"

// service has Method. It is not generated, since it has no messages of its own.
var service = grpc.ServiceDesc{
	ServiceName: "lockstep.test.Pod",
	HandlerType: (*asked)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Ask", Handler: func(server any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		request := &wrapperspb.StringValue{}
		if err := decode(request); err != nil {
			return nil, err
		}
		return server.(asked).ask(ctx, request.GetValue())
	}}},
}

type asked interface {
	ask(context.Context, string) (*wrapperspb.StringValue, error)
}

// ask is ServeHTTP for gRPC.
func (s *Server) ask(ctx context.Context, text string) (*wrapperspb.StringValue, error) {
	duration, err := durationOf(text)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	pod, answer := s.find(ctx, localAddress(ctx))
	answer = s.serve(ctx, pod, answer, duration)
	raw, err := json.Marshal(answer)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if answer.Violation != "" {
		return nil, status.Error(codes.Unavailable, string(raw))
	}
	return wrapperspb.String(string(raw)), nil
}
