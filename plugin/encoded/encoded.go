// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package encoded has messages that many streams send without copies: each is encoded once, and its bytes are shared.
//
//	m, err := encoded.New(response)
//	err = stream.SendMsg(m)
//
// A server with [Codec] sends the bytes as they are. Any other server encodes the message again.
package encoded

import (
	"crypto/sha256"
	"fmt"

	"google.golang.org/grpc/encoding"
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Message is an encoded message. It is a proto.Message, which is decoded for each use as such.
type Message struct {
	kind protoreflect.MessageType
	raw  []byte
	Sum  Sum
}

// Sum identifies a message: equal ones have the same.
type Sum [sha256.Size]byte

// New encodes a message.
func New(m proto.Message) (*Message, error) {
	// Sum is of the bytes, so the order of a map must not differ between two messages.
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", m, err)
	}
	return &Message{kind: m.ProtoReflect().Type(), raw: raw, Sum: sha256.Sum256(raw)}, nil
}

// ProtoReflect implements proto.Message.
func (m *Message) ProtoReflect() protoreflect.Message {
	decoded := m.kind.New()
	_ = proto.Unmarshal(m.raw, decoded.Interface()) // New has made the bytes
	return decoded
}

// Codec returns gRPC's codec of protobuf, which sends the bytes of a Message as they are.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2(encodingproto.Name)} }

type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(*Message); ok {
		return mem.BufferSlice{mem.SliceBuffer(m.raw)}, nil
	}
	return c.CodecV2.Marshal(v) //nolint:wrapcheck // gRPC's own
}
