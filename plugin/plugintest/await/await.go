// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package await waits for conditions in tests, never for time.
package await

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// Patience is how long a condition may take on a busy machine. A test that passes never waits that long.
	Patience = 3 * time.Minute

	poll = 20 * time.Millisecond
)

// Nil waits until check returns nil, and fails the test with its last error otherwise.
func Nil(t testing.TB, what string, check func(context.Context) error) {
	t.Helper()
	NilWithin(t, Patience, what, check)
}

// NilWithin is [Nil] with its own timeout.
func NilWithin(t testing.TB, patience time.Duration, what string, check func(context.Context) error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), poll, patience, true, func(ctx context.Context) (bool, error) {
		last = check(ctx)
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("timed out waiting for: %s: %v", what, last)
	}
}

// True waits until a condition holds.
func True(t testing.TB, what string, condition func() bool) {
	t.Helper()
	timeout, ticker := time.NewTimer(Patience), time.NewTicker(time.Millisecond)
	defer timeout.Stop()
	defer ticker.Stop()
	for !condition() {
		select {
		case <-timeout.C:
			t.Fatalf("timed out waiting for: %s", what)
		case <-ticker.C:
		}
	}
}
