// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/lockstep-rollouts/lockstep/internal/host"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Live keeps a table of the release at the bottom of a terminal, and prints events above it. It does not hide the cursor or
// change the terminal's mode, so a process that is killed leaves the terminal as it was.
type Live struct {
	w    io.Writer
	size func() (width, height int)
	// clock redraws each second, since the table has ages.
	clock *periodic

	mu      sync.Mutex
	start   time.Time
	context *pb.BatchContext
	footer  func() string
	drawn   int
}

// NewLive returns a printer to w. It calls size each time that it draws.
func NewLive(w io.Writer, start time.Time, size func() (width, height int)) *Live {
	l := &Live{w: w, size: size, start: start}
	l.clock = everySecond(func(now time.Time) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.draw(nil, now)
	})
	return l
}

// Footer adds a line below the table, which it gets from line each time that it draws: one line, not empty, without a newline.
func (l *Live) Footer(line func() string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.footer = line
}

// Observe prints an event above the table, unless the table shows it, and redraws the table.
func (l *Live) Observe(e host.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var lines []string
	if e.Kind != host.EventProgress && e.Kind != EventStatus {
		lines = []string{stamped(e.Time.Sub(l.start), messageLine(e))}
	}
	l.context = e.Context
	l.draw(lines, time.Now())
}

// Write prints log lines above the table. Each call must have whole lines.
func (l *Live) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draw(strings.Split(strings.TrimSuffix(string(p), "\n"), "\n"), time.Now())
	return len(p), nil
}

// Close stops it. The last table stays on the screen.
func (l *Live) Close() {
	l.clock.stop()
}

// draw replaces the table by lines and a new table, in one write to avoid flicker. The lock is held.
func (l *Live) draw(lines []string, now time.Time) {
	var b strings.Builder
	if l.drawn > 0 {
		// Move to the table's first line, and clear to the end of the screen.
		fmt.Fprintf(&b, "\x1b[%dA\r\x1b[J", l.drawn)
	}
	for _, line := range lines {
		b.WriteString(line + "\n")
	}
	width, height := l.size()
	table := l.frame(now, width, height)
	l.drawn = strings.Count(table, "\n")
	b.WriteString(table)
	_, _ = io.WriteString(l.w, b.String())
}

// frame returns Frame with the footer. The lock is held.
func (l *Live) frame(now time.Time, width, height int) string {
	if l.footer == nil {
		return Frame(l.context, now, width, height)
	}
	line := OneLine(l.footer())
	if width > 0 {
		line = ansi.Truncate(line, width, "…")
	}
	if height > 0 {
		// The footer and an empty line above it.
		height = max(height-2, 1)
	}
	return Frame(l.context, now, width, height) + "\n" + line + "\n"
}

// Frame returns the table, cut to the size of a terminal: wrapped lines, or a table taller than the screen, can't be redrawn
// in place. Unready groups are the last to be left out. Sizes of 0 and less are no limit.
func Frame(c *pb.BatchContext, now time.Time, width, height int) string {
	if c == nil {
		return ""
	}
	header := "\n" + Header(c, now) + "\n"
	// Two lines for the heading and "more groups", one for the cursor.
	room := height - strings.Count(header, "\n") - 3
	shown, hidden := c.GetGroups(), 0
	if height > 0 {
		shown, hidden = fit(shown, room)
	}
	text := header + Groups(shown, now) + moreGroups(hidden+int(c.GetGroupsOmitted()))
	if width <= 0 {
		return text
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(ansi.Truncate(line, width, "…"), " ")
	}
	return strings.Join(lines, "\n") + "\n"
}
