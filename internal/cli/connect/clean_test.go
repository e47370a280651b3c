// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	hostile  = "a\x1b[2Jb\rc\u009bd\u202ee\u2066f\ng"
	harmless = "a [2Jb c d e f\ng"
)

// fill sets all strings of a message, and of messages in it, to a text.
func fill(m protoreflect.Message, depth int, text string) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		value := func() (protoreflect.Value, bool) {
			switch f.Kind() {
			case protoreflect.StringKind:
				return protoreflect.ValueOfString(text), true
			case protoreflect.MessageKind:
				return protoreflect.Value{}, depth > 0
			default:
				return protoreflect.Value{}, false
			}
		}
		v, ok := value()
		switch {
		case !ok:
		case f.IsMap():
			if f.MapKey().Kind() == protoreflect.StringKind && f.MapValue().Kind() == protoreflect.StringKind {
				m.Mutable(f).Map().Set(protoreflect.ValueOfString(text).MapKey(), protoreflect.ValueOfString(text))
			}
		case f.IsList() && f.Kind() == protoreflect.MessageKind:
			fill(m.Mutable(f).List().AppendMutable().Message(), depth-1, text)
		case f.IsList():
			m.Mutable(f).List().Append(v)
		case f.Kind() == protoreflect.MessageKind:
			fill(m.Mutable(f).Message(), depth-1, text)
		default:
			m.Set(f, v)
		}
	}
}

// Each string of each response is clean, and nothing else changes.
func TestCleanResponses(t *testing.T) {
	t.Parallel()
	for _, response := range []proto.Message{
		&pb.BatchContext{}, &pb.InitializeResponse{}, &pb.UpgradeBatchResponse{}, &pb.FinalizeResponse{}, &pb.AdoptResponse{},
		&pb.PlanResponse{}, &pb.PreflightResponse{}, &pb.ListRevisionsResponse{}, &pb.WatchWorkloadsResponse{}, &pb.GetDriverInfoResponse{},
	} {
		got, want := response.ProtoReflect().New().Interface(), response.ProtoReflect().New().Interface()
		fill(got.ProtoReflect(), 3, hostile)
		fill(want.ProtoReflect(), 3, harmless)
		require.False(t, proto.Equal(got, want), "%T has no string", response)
		cleanStrings(got)
		if !proto.Equal(got, want) {
			t.Errorf("%T: %s", response, prototext.Format(got))
		}
	}
}

func TestCleanErrors(t *testing.T) {
	t.Parallel()
	err := drivererr.WithMetadata(drivererr.New(pb.ErrorReason_ERROR_REASON_REJECTED, "%s", hostile), "release_id", hostile)
	got := cleanError(err)
	assert.True(t, status.Code(got) == status.Code(err) && drivererr.Reason(got) == pb.ErrorReason_ERROR_REASON_REJECTED,
		"code %v, reason %v", status.Code(got), drivererr.Reason(got))
	text := got.Error() + drivererr.Metadata(got)["release_id"]
	assert.False(t, strings.ContainsAny(text, "\x1b\r\u009b\u202e\u2066"), "%q", text)
	invalid := cleanError(drivererr.Invalid(drivererr.FieldViolation{Field: "policy.batches", Description: hostile}))
	v := drivererr.Violations(invalid)
	assert.True(t, len(v) == 1 && v[0].Description == harmless && status.Code(invalid) == codes.InvalidArgument, invalid)
	if cleanError(io.EOF) != io.EOF { //nolint:errorlint // the end of a stream is this very error
		t.Error("the end of a stream changed")
	}
}
