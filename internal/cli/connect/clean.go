// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	"github.com/lockstep-rollouts/lockstep/plugin"
)

// forUsers are the options of a client whose answers a user reads. What drivers answer has texts of pods, events and annotations, which
// anyone may have written: control characters are removed here, before a command can print one.
func forUsers() []plugin.Option {
	unary := func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if err := call(ctx, method, request, reply, conn, opts...); err != nil {
			return cleanError(err)
		}
		clean(reply)
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
	return []plugin.Option{
		plugin.WithoutName(),
		plugin.WithDialOptions(grpc.WithChainUnaryInterceptor(unary), grpc.WithChainStreamInterceptor(stream)),
	}
}

type cleanStream struct{ grpc.ClientStream }

// RecvMsg receives a response.
func (s cleanStream) RecvMsg(m any) error {
	if err := s.ClientStream.RecvMsg(m); err != nil {
		return cleanError(err)
	}
	clean(m)
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
			clean(m)
			if err := detail.MarshalFrom(m); err != nil {
				return err //nolint:wrapcheck // it was marshaled before
			}
		}
	}
	return status.ErrorProto(p) //nolint:wrapcheck // the same error
}

// clean replaces the control characters in all strings of a message.
func clean(message any) {
	if m, ok := message.(proto.Message); ok {
		cleanMessage(m.ProtoReflect())
	}
}

func cleanMessage(m protoreflect.Message) {
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsMap():
			cleanMap(v.Map())
		case field.IsList():
			list := v.List()
			for i := range list.Len() {
				cleanValue(list.Get(i), func(text protoreflect.Value) { list.Set(i, text) })
			}
		default:
			cleanValue(v, func(text protoreflect.Value) { m.Set(field, text) })
		}
		return true
	})
}

// cleanMap cleans keys, too.
func cleanMap(entries protoreflect.Map) {
	var unclean [][2]protoreflect.MapKey // a key, and what it is to be
	entries.Range(func(key protoreflect.MapKey, v protoreflect.Value) bool {
		cleanValue(v, func(text protoreflect.Value) { entries.Set(key, text) })
		cleanValue(key.Value(), func(text protoreflect.Value) { unclean = append(unclean, [2]protoreflect.MapKey{key, text.MapKey()}) })
		return true
	})
	// The map must not change while Range runs.
	for _, key := range unclean {
		entries.Set(key[1], entries.Get(key[0]))
		entries.Clear(key[0])
	}
}

// cleanValue cleans a message, or calls set with the clean text of a string that was not clean.
func cleanValue(v protoreflect.Value, set func(protoreflect.Value)) {
	switch of := v.Interface().(type) {
	case protoreflect.Message:
		cleanMessage(of)
	case string:
		if text := view.Printable(of); text != of {
			set(protoreflect.ValueOfString(text))
		}
	}
}
