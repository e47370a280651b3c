// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/lockstep-rollouts/lockstep/internal/host"
)

// Lines prints one line per change, without control characters: for logs and pipelines.
type Lines struct {
	w     io.Writer
	start time.Time
	clock *periodic

	mu      sync.Mutex
	changes changes
}

// NewLines returns a printer to w. Times are relative to start.
func NewLines(w io.Writer, start time.Time) *Lines {
	l := &Lines{w: w, start: start}
	l.clock = everySecond(func(now time.Time) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.print(now, l.changes.unready(now))
	})
	return l
}

// Observe prints what is new in an event.
func (l *Lines) Observe(e host.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.print(e.Time, l.changes.lines(e))
}

// Close stops it. It must be called once.
func (l *Lines) Close() {
	l.clock.stop()
}

func (l *Lines) print(now time.Time, lines []string) {
	for _, line := range lines {
		_, _ = fmt.Fprintln(l.w, stamped(now.Sub(l.start), line))
	}
}

// stamped prefixes a line with a time.
func stamped(elapsed time.Duration, line string) string {
	return fmt.Sprintf("%6s  %s", Age(elapsed), line)
}
