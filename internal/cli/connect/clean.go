// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	"github.com/lockstep-rollouts/lockstep/plugin"
)

// forUser returns the options of a client whose answers a user reads. What drivers answer has texts of pods, events and annotations, which
// anyone may have written: control characters are removed here, before a command can print one.
func forUser(o plugin.DialOptions) plugin.DialOptions {
	unary := func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if err := call(ctx, method, request, reply, conn, opts...); err != nil {
			return cleanError(err)
		}
		cleanStrings(reply)
		return nil
	}
	stream := func(
		ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, conn, method, opts...)
		if err != nil {
			return nil, cleanError(err)
		}
		return cleanStream{s}, nil
	}
	o.WithoutName = true
	o.GRPC = append(o.GRPC, grpc.WithChainUnaryInterceptor(unary), grpc.WithChainStreamInterceptor(stream))
	return o
}

type cleanStream struct{ grpc.ClientStream }

// RecvMsg receives a response.
func (s cleanStream) RecvMsg(m any) error {
	if err := s.ClientStream.RecvMsg(m); err != nil {
		return cleanError(err)
	}
	cleanStrings(m)
	return nil
}

// cleanError cleans a status, and returns other errors, such as io.EOF, as they are.
func cleanError(err error) error {
	s, ok := status.FromError(err)
	// io.EOF ends a stream, and its readers compare it.
	if !ok {
		return err
	}
	p := s.Proto()
	p.Message = view.Printable(p.GetMessage())
	for _, detail := range p.GetDetails() {
		// A detail of an unknown type can't be printed either, so it may stay as it is.
		if m, err := detail.UnmarshalNew(); err == nil {
			cleanStrings(m)
			if err := detail.MarshalFrom(m); err != nil {
				return err //nolint:wrapcheck // it was marshaled before
			}
		}
	}
	return status.ErrorProto(p) //nolint:wrapcheck // the same error
}

// cleanStrings replaces the control characters in all strings of a message, keys of maps included.
func cleanStrings(message any) {
	m, ok := message.(proto.Message)
	if !ok {
		return
	}
	_ = protorange.Range(m.ProtoReflect(), func(values protopath.Values) error {
		last := values.Index(-1)
		switch of := last.Value.Interface().(type) {
		case protoreflect.Map:
			cleanKeys(of)
		case string:
			within, text := values.Index(-2).Value, protoreflect.ValueOfString(view.Printable(of))
			switch last.Step.Kind() {
			case protopath.FieldAccessStep:
				within.Message().Set(last.Step.FieldDescriptor(), text)
			case protopath.ListIndexStep:
				within.List().Set(last.Step.ListIndex(), text)
			case protopath.MapIndexStep:
				within.Map().Set(last.Step.MapIndex(), text)
			default:
			}
		}
		return nil
	})
}

func cleanKeys(entries protoreflect.Map) {
	var unclean []protoreflect.MapKey // the map must not change while it is ranged over
	entries.Range(func(key protoreflect.MapKey, _ protoreflect.Value) bool {
		if view.Printable(key.String()) != key.String() {
			unclean = append(unclean, key)
		}
		return true
	})
	for _, key := range unclean {
		entries.Set(protoreflect.ValueOfString(view.Printable(key.String())).MapKey(), entries.Get(key))
		entries.Clear(key)
	}
}
