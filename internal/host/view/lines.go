// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/lockstep-rollouts/lockstep/internal/host"
)

// Lines prints one line per change, without control characters: for logs and pipelines.
type Lines struct {
	w     io.Writer
	start time.Time
	diary diary
}

// NewLines prints to w. Times are relative to start.
func NewLines(w io.Writer, start time.Time) *Lines {
	return &Lines{w: w, start: start}
}

// Observe prints what is new in an event.
func (l *Lines) Observe(e host.Event) {
	for _, line := range l.diary.lines(e) {
		_, _ = fmt.Fprintln(l.w, stamped(e.Time.Sub(l.start), line))
	}
}

// stamped puts the time before a line.
func stamped(elapsed time.Duration, line string) string {
	return fmt.Sprintf("%6s  %s", age(elapsed), line)
}

// diary remembers what was said, so that each line is news.
type diary struct {
	progress string
	problems []string
}

// lines are what is to be said about an event.
func (d *diary) lines(e host.Event) []string {
	switch e.Kind {
	case host.EventProgress:
		return d.changes(e)
	case host.EventWarning, host.EventFailed:
		return []string{string(e.Kind) + ": " + oneLine(e.Message)}
	default:
		return []string{oneLine(e.Message)}
	}
}

// changes are the lines of a new context.
func (d *diary) changes(e host.Event) []string {
	var lines []string
	if text := Progress(e.Context); text != d.progress {
		d.progress = text
		lines = append(lines, text)
	}
	problems := Problems(e.Context)
	for _, p := range problems {
		if !slices.Contains(d.problems, p) {
			lines = append(lines, p)
		}
	}
	d.problems = problems
	return lines
}
