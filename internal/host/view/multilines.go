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
	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Running reports whether a release is in flight or has failed.
func Running(c *pb.BatchContext) bool {
	return plugin.InFlight(c) || c.GetState() == pb.State_STATE_FAILED
}

// MultiLines is Lines for several workloads: each line has the workload's name. Workloads at rest have no lines.
type MultiLines struct {
	w     io.Writer
	start time.Time
	clock *periodic

	mu      sync.Mutex
	changes map[string]*changes
}

// NewMultiLines returns a printer to w. Times are relative to start.
func NewMultiLines(w io.Writer, start time.Time) *MultiLines {
	s := &MultiLines{w: w, start: start, changes: map[string]*changes{}}
	s.clock = everySecond(func(now time.Time) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, name := range slices.Sorted(maps.Keys(s.changes)) {
			s.print(now, name, s.changes[name].unready(now))
		}
	})
	return s
}

// Observe prints what is new in an event. An event without a context is printed without a name.
func (s *MultiLines) Observe(e host.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.Context == nil {
		_, _ = fmt.Fprintln(s.w, stamped(e.Time.Sub(s.start), messageLine(e)))
		return
	}
	name := workload(e.Context)
	known := s.changes[name]
	if known == nil {
		if !Running(e.Context) {
			return
		}
		known = &changes{}
		s.changes[name] = known
	}
	s.print(e.Time, name, known.lines(e))
	if !Running(e.Context) {
		delete(s.changes, name)
	}
}

// Gone removes a workload that is no longer under hold.
func (s *MultiLines) Gone(ref *pb.WorkloadRef, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := ref.GetNamespace() + "/" + ref.GetName()
	if s.changes[name] != nil {
		s.print(now, name, []string{"no longer under hold"})
		delete(s.changes, name)
	}
}

// Close stops it. It must be called once.
func (s *MultiLines) Close() {
	s.clock.stop()
}

func (s *MultiLines) print(now time.Time, name string, lines []string) {
	for _, line := range lines {
		_, _ = fmt.Fprintln(s.w, stamped(now.Sub(s.start), name+"  "+line))
	}
}
