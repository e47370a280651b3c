// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package drivererr

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func TestReasonSurvives(t *testing.T) {
	for number := range pb.ErrorReason_name {
		reason := pb.ErrorReason(number)
		err := fmt.Errorf("scale canary: %w", New(reason, "default/vllm: %d of %d", 1, 4))
		got := Reason(err)
		assert.Equal(t, reason, got, "Reason(New(%v)) = %v", reason, got)
		if got := status.Code(err); got != Code(reason) {
			t.Errorf("status.Code(New(%v)) = %v, want %v", reason, got, Code(reason))
		}
	}
}

func TestReasonIgnoresErrorsOfOtherDomains(t *testing.T) {
	foreign, err := status.New(codes.Aborted, "x").WithDetails(&errdetails.ErrorInfo{Domain: "csi.dev", Reason: "CONFLICT"})
	require.NoError(t, err)
	newer, err := status.New(codes.Aborted, "x").WithDetails(&errdetails.ErrorInfo{Domain: Domain, Reason: "NEWER"})
	require.NoError(t, err)
	tests := []struct {
		name   string
		reason string
		err    error
	}{
		{"nil", "no error has no reason", nil},
		{"plain", "an error that never was a status", errors.New("x")},
		{"bare status", "a status without details", status.Error(codes.NotFound, "x")},
		{"foreign domain", "the same word of another domain means something else", foreign.Err()},
		{"newer reason", "a driver newer than this host", newer.Err()},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Reason(tt.err)
			assert.Equal(t, pb.ErrorReason_ERROR_REASON_UNSPECIFIED, got, "%s: Reason() = %v, want UNSPECIFIED", tt.reason, got)
		})
	}
}

func TestNewLeavesPlainMessagesAlone(t *testing.T) {
	err := New(pb.ErrorReason_ERROR_REASON_REJECTED, "webhook: 100%s")
	assert.Equal(t, "webhook: 100%s", status.Convert(err).Message(), "message")
}

func TestInvalid(t *testing.T) {
	if err := Invalid(); err != nil {
		t.Errorf("Invalid() = %v, want nil: nothing was wrong", err)
	}
	want := []FieldViolation{
		{Field: "workload", Description: "is required"},
		{Field: "policy.batches[1]", Description: "must not decrease"},
	}
	err := Invalid(want...)
	got := Reason(err)
	assert.Equal(t, pb.ErrorReason_ERROR_REASON_INVALID_REQUEST, got, "Reason() = %v, want INVALID_REQUEST", got)
	assert.Empty(t, cmp.Diff(want, Violations(err)), "Violations() (-want +got)")
}

func TestWithMetadata(t *testing.T) {
	err := New(pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS, "held")
	err = WithMetadata(WithMetadata(err, "release_id", "r1"), "owner", "argo")
	assert.Empty(t, cmp.Diff(map[string]string{"release_id": "r1", "owner": "argo"}, Metadata(err)), "Metadata() (-want +got)")
	got := Reason(err)
	assert.Equal(t, pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS, got, "Reason() = %v after WithMetadata", got)
	invalid := WithMetadata(Invalid(FieldViolation{Field: "f", Description: "d"}), "object", "x")
	assert.Len(t, Violations(invalid), 1, "WithMetadata dropped the field violations")
	plain := errors.New("x")
	if got := WithMetadata(plain, "k", "v"); got != plain { //nolint:errorlint // identity is what is promised
		t.Errorf("WithMetadata(plain) = %v, want it unchanged", got)
	}
}

func TestRetryable(t *testing.T) {
	retryable := map[codes.Code]bool{codes.Aborted: true, codes.Unavailable: true}
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		err := status.Error(code, "x")
		assert.Equal(t, retryable[code], Retryable(err), "Retryable(%v)", code)
	}
	assert.True(t, Retryable(fmt.Errorf("upgrade: %w", status.Error(codes.Aborted, "x"))), "Retryable must look through wrapping")
	assert.False(t, Retryable(context.DeadlineExceeded), "the caller's own deadline is not retryable")
}

// protobuf can hold durations that Go can't, and two signs at once.
func TestDurationOfField(t *testing.T) {
	for _, d := range []*durationpb.Duration{{Seconds: math.MaxInt64}, {Seconds: 1, Nanos: -1}} {
		f := Fields{Path: "policy"}
		got := f.Duration("min_ready", d, time.Second, math.MaxInt64)
		assert.True(t, got == time.Second && len(f.List) == 1 && f.List[0].Field == "policy.min_ready", "%v is %s: %v", d, got, f.List)
	}
}
