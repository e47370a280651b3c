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
	if err != nil || limited("ada") || !limited("ada") {
		t.Fatalf("want two for a key: %v", err)
	}
	if limited("bob") || !limited("eve") {
		t.Fatal("want three in all")
	}
	release()
	release()
	if limited("eve") || !limited("bob") {
		t.Error("want one more after the release of one")
	}
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
		if _, err := s.take("ada"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWithin(t *testing.T) {
	late, failed := errors.New("late"), errors.New("failed")
	never := make(chan error)
	if err := callWithin(time.Millisecond, func() error { return <-never }, func() error { return late }); !errors.Is(err, late) {
		t.Errorf("a call without an end: %v", err)
	}
	close(never)
	if err := callWithin(time.Minute, func() error { return failed }, func() error { return late }); !errors.Is(err, failed) {
		t.Errorf("a call that fails: %v", err)
	}
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
