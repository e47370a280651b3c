// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Live keeps the status of workloads at the bottom of a terminal, and prints events above it. It does not hide the cursor or
// change the terminal's mode, so a process that is killed leaves the terminal as it was.
type Live struct {
	w io.Writer
	// height returns how many lines the terminal has, 0 if that is unknown.
	height func() int
	// stop ends that it is redrawn each second, since the status has ages.
	stop func()

	mu       sync.Mutex
	start    time.Time
	contexts map[string]*pb.BatchContext
	drawn    int
}

// NewLive returns a printer to w. It calls height each time that it draws.
func NewLive(w io.Writer, start time.Time, height func() int) *Live {
	l := &Live{w: w, height: height, start: start, contexts: map[string]*pb.BatchContext{}}
	l.stop = everySecond(func(now time.Time) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.draw(nil, now)
	})
	return l
}

// Observe prints an event above the status, unless the status shows it, and redraws the status.
func (l *Live) Observe(e host.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var lines []string
	if e.Kind != host.EventProgress && e.Kind != EventStatus {
		lines = []string{withTime(e.Time.Sub(l.start), messageLine(e))}
	}
	if e.Context != nil {
		l.contexts[plugin.WorkloadKey(e.Context.GetWorkload())] = e.Context
	}
	l.draw(lines, time.Now())
}

// End prints the last event of a workload above the status, which no longer shows the workload.
func (l *Live) End(e host.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	name, line := plugin.WorkloadKey(e.Context.GetWorkload()), messageLine(e)
	if e.Kind == EventStatus {
		line = Progress(e.Context)
	}
	delete(l.contexts, name)
	l.draw([]string{withTime(e.Time.Sub(l.start), name+"  "+line)}, time.Now())
}

// Write prints log lines above the status. Each call must have whole lines.
func (l *Live) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.draw(strings.Split(strings.TrimSuffix(string(p), "\n"), "\n"), time.Now())
	return len(p), nil
}

// Close stops it. The last status stays on the screen.
func (l *Live) Close() { l.stop() }

// noWrap and wrap surround what is redrawn, so that the terminal cuts a line that is too long: if it were wrapped, the number of lines to
// clear would be wrong.
const noWrap, wrap = "\x1b[?7l", "\x1b[?7h"

// draw replaces the status by lines and a new status, in one write to avoid flicker. The lock is held.
func (l *Live) draw(lines []string, now time.Time) {
	var b strings.Builder
	if l.drawn > 0 {
		// Move to the first line of the status, and clear to the end of the screen.
		fmt.Fprintf(&b, "\x1b[%dA\r\x1b[J", l.drawn)
	}
	for _, line := range lines {
		b.WriteString(line + "\n")
	}
	contexts := make([]*pb.BatchContext, 0, len(l.contexts))
	for _, name := range slices.Sorted(maps.Keys(l.contexts)) {
		contexts = append(contexts, l.contexts[name])
	}
	status := renderFrame(contexts, now, l.height())
	if l.drawn = strings.Count(status, "\n"); l.drawn > 0 {
		status = noWrap + status + wrap
	}
	_, _ = io.WriteString(l.w, b.String()+status)
}

// renderFrame returns the status of workloads, cut to the height of a terminal: more lines than the screen has can't be redrawn in place. A height of 0
// is no limit.
func renderFrame(contexts []*pb.BatchContext, now time.Time, height int) string {
	room := 0
	if height > 0 {
		// One line for the empty line at the top, and one for the cursor.
		room = max(height-2, 1)
	}
	lines := statusLines(contexts, now, room)
	if len(lines) == 0 {
		return ""
	}
	return "\n" + strings.Join(lines, "\n") + "\n"
}

// statusLines returns the status of workloads with an empty line between two. If there is too little room, each of several gets one line,
// and one has its ready groups left out first.
func statusLines(contexts []*pb.BatchContext, now time.Time, room int) []string {
	var lines []string
	for ready := readyShown; ready > 0; ready /= 2 {
		lines = nil
		for _, c := range contexts {
			if len(lines) > 0 {
				lines = append(lines, "")
			}
			lines = append(lines, strings.Split(strings.TrimSuffix(statusTree(c, now, ready), "\n"), "\n")...)
		}
		if room <= 0 || len(lines) <= room {
			return lines
		}
	}
	if len(contexts) > 1 {
		lines = nil
		for _, c := range contexts {
			lines = append(lines, plugin.WorkloadKey(c.GetWorkload())+"  "+Progress(c))
		}
	}
	return firstLines(lines, room)
}

// firstLines returns the first lines, and how many follow.
func firstLines(lines []string, room int) []string {
	if len(lines) <= room {
		return lines
	}
	shown := max(room-1, 0)
	return append(lines[:shown:shown], fmt.Sprintf("... %d more lines", len(lines)-shown))
}
