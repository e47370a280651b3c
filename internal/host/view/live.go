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

// Live keeps a table of where the release stands at the bottom of a terminal, and prints what happens above it. It
// hides no cursor and changes no terminal mode, so a process that is killed leaves the terminal as it was.
type Live struct {
	w    io.Writer
	size func() (width, height int)
	// clock redraws each second, because ages grow.
	clock *ticking

	mu      sync.Mutex
	start   time.Time
	context *pb.BatchContext
	footer  func() string
	drawn   int
}

// NewLive draws on w, whose size is asked for at each drawing, until Close.
func NewLive(w io.Writer, start time.Time, size func() (width, height int)) *Live {
	l := &Live{w: w, size: size, start: start}
	l.clock = everySecond(func(now time.Time) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.draw(nil, now)
	})
	return l
}

// Footer adds a line below the table, which is asked for at each drawing. It must not be empty, nor end in a newline.
func (l *Live) Footer(line func() string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.footer = line
}

// Observe prints what is new in an event above the table, and redraws the table. What the table shows is not repeated.
func (l *Live) Observe(e host.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var lines []string
	if e.Kind != host.EventProgress && e.Kind != EventStatus {
		lines = []string{stamped(e.Time.Sub(l.start), told(e))}
	}
	l.context = e.Context
	l.draw(lines, time.Now())
}

// Write prints log lines above the table, so that a logger does not tear it. Each call carries whole lines.
func (l *Live) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draw(strings.Split(strings.TrimSuffix(string(p), "\n"), "\n"), time.Now())
	return len(p), nil
}

// Close leaves the last table on the screen.
func (l *Live) Close() {
	l.clock.stop()
}

// draw replaces the table by lines and a new table, in one write so that it does not flicker. The lock is held.
func (l *Live) draw(lines []string, now time.Time) {
	var b strings.Builder
	if l.drawn > 0 {
		// Up to the table's first line, and clear to the end of the screen.
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

// frame is Frame with the footer, if there is one. The lock is held.
func (l *Live) frame(now time.Time, width, height int) string {
	if l.footer == nil {
		return Frame(l.context, now, width, height)
	}
	line := OneLine(l.footer())
	if width > 0 {
		line = ansi.Truncate(line, width, "…")
	}
	if height > 0 {
		// The line and the one that is left free above it.
		height = max(height-2, 1)
	}
	return Frame(l.context, now, width, height) + "\n" + line + "\n"
}

// Frame is the table, cut to a terminal: a line that wrapped, or a table taller than the screen, could not be redrawn in
// place. Groups that are not ready are the last to be left out. Sizes of 0 and less are no limit.
func Frame(c *pb.BatchContext, now time.Time, width, height int) string {
	if c == nil {
		return ""
	}
	header := "\n" + Header(c, now) + "\n"
	// Two lines are for the heading and for "more groups", one for the cursor.
	room := height - strings.Count(header, "\n") - 3
	shown, hidden := c.GetGroups(), 0
	if height > 0 {
		shown, hidden = fit(shown, room)
	}
	text := header + Groups(shown, now)
	if hidden > 0 {
		text += fmt.Sprintf("... and %s\n", count(int32(hidden), "more group"))
	}
	if width <= 0 {
		return text
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(ansi.Truncate(line, width, "…"), " ")
	}
	return strings.Join(lines, "\n") + "\n"
}
