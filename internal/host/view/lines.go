// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lockstep-rollouts/lockstep/internal/host"
)

// Lines prints one line per change, without control characters: for logs and pipelines.
type Lines struct {
	w     io.Writer
	start time.Time
	// named is true if lines begin with the workload's name.
	named bool
	clock *periodic

	mu      sync.Mutex
	changes map[string]*changes
}

// NewLines returns a printer to w. Times are relative to start. Lines about several workloads have to be named.
func NewLines(w io.Writer, start time.Time, named bool) *Lines {
	l := &Lines{w: w, start: start, named: named, changes: map[string]*changes{}}
	l.clock = everySecond(func(now time.Time) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, name := range slices.Sorted(maps.Keys(l.changes)) {
			l.print(now, name, l.changes[name].unready(now))
		}
	})
	return l
}

// Observe prints what is new in an event.
func (l *Lines) Observe(e host.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.observe(e)
}

// End prints the last event of a workload.
func (l *Lines) End(e host.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.observe(e)
	delete(l.changes, workload(e.Context))
}

func (l *Lines) observe(e host.Event) {
	if e.Context == nil {
		l.print(e.Time, "", []string{messageLine(e)})
		return
	}
	name := workload(e.Context)
	if l.changes[name] == nil {
		l.changes[name] = &changes{}
	}
	l.print(e.Time, name, l.changes[name].lines(e))
}

// Close stops it. It must be called once.
func (l *Lines) Close() { l.clock.stop() }

func (l *Lines) print(now time.Time, name string, lines []string) {
	for _, line := range lines {
		if l.named && name != "" {
			line = name + "  " + line
		}
		_, _ = fmt.Fprintln(l.w, stamped(now.Sub(l.start), line))
	}
}

// stamped prefixes a line with a time.
func stamped(elapsed time.Duration, line string) string {
	return fmt.Sprintf("%6s  %s", Age(elapsed), line)
}

// periodic calls a function each second in the background.
type periodic struct {
	ended, done chan struct{}
}

func everySecond(call func(now time.Time)) *periodic {
	t := &periodic{ended: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(t.done)
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-t.ended:
				return
			case now := <-ticker.C:
				call(now)
			}
		}
	}()
	return t
}

// stop waits for a call in progress. It must be called once.
func (t *periodic) stop() {
	close(t.ended)
	<-t.done
}
