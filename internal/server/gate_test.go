// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func TestSlots(t *testing.T) {
	s := newSlots(3, 2)
	limited := func(key string) bool {
		_, err := s.take(key)
		return drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_RATE_LIMITED
	}
	release, err := s.take("ada")
	require.True(t, err == nil && !limited("ada") && limited("ada"), "want two for a key: %v", err)
	require.True(t, !limited("bob") && limited("eve"), "want three in all")
	release()
	release()
	assert.True(t, !limited("eve") && limited("bob"), "want one more after the release of one")
}

// A few keys that take what they can leave some to others.
func TestKeysLeaveSlots(t *testing.T) {
	s := newSlots(maxCalls, maxUserCalls)
	for i := range maxCalls / maxUserCalls {
		for err := error(nil); err == nil; {
			_, err = s.take(fmt.Sprint("loud-", i))
		}
	}
	for range 10 {
		_, err := s.take("ada")
		require.NoError(t, err)
	}
}

func TestWithin(t *testing.T) {
	late, failed := errors.New("late"), errors.New("failed")
	never := make(chan error)
	assert.ErrorIs(t, callWithin(time.Millisecond, func() error { return <-never }, func() error { return late }), late, "a call without an end")
	close(never)
	assert.ErrorIs(t, callWithin(time.Minute, func() error { return failed }, func() error { return late }), failed, "a call that fails")
}

// One of many calls that fail alike is logged.
func TestRefusalsAreSampled(t *testing.T) {
	var log bytes.Buffer
	s := &sampler{logger: slog.New(slog.NewTextHandler(&log, nil))}
	for range 50 {
		s.logRefused(t.Context(), pb.WorkloadDriver_Adopt_FullMethodName, errInvalidToken)
		s.logRefused(t.Context(), "/unheard/Of", errInvalidToken)
	}
	if n := strings.Count(log.String(), "\n"); n != 2 {
		t.Fatalf("%d lines, want one for each method:\n%s", n, log.String())
	}
}
