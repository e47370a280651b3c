// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sleep waits between attempts.
package sleep

import (
	"context"
	"time"
)

// For waits for d, or less if ctx ends.
func For(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
