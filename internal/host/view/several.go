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

// Running says whether a release is under way, or the workload needs somebody.
func Running(c *pb.BatchContext) bool {
	return plugin.InFlight(c) || c.GetState() == pb.State_STATE_FAILED
}

// Several prints the lines of several workloads, each with its name, as Lines does for one. What is at rest has no line.
type Several struct {
	w     io.Writer
	start time.Time
	clock *ticking

	mu      sync.Mutex
	diaries map[string]*diary
}

// NewSeveral prints to w until Close. Times are relative to start.
func NewSeveral(w io.Writer, start time.Time) *Several {
	s := &Several{w: w, start: start, diaries: map[string]*diary{}}
	s.clock = everySecond(func(now time.Time) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, name := range slices.Sorted(maps.Keys(s.diaries)) {
			s.print(now, name, s.diaries[name].overdue(now))
		}
	})
	return s
}

// Observe prints what is new in an event. One without a context is about no workload in particular.
func (s *Several) Observe(e host.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.Context == nil {
		_, _ = fmt.Fprintln(s.w, stamped(e.Time.Sub(s.start), told(e)))
		return
	}
	name := workload(e.Context)
	known := s.diaries[name]
	if known == nil {
		if !Running(e.Context) {
			return
		}
		known = &diary{}
		s.diaries[name] = known
	}
	s.print(e.Time, name, known.lines(e))
	if !Running(e.Context) {
		// The next release begins a new one.
		delete(s.diaries, name)
	}
}

// Gone forgets a workload, of which there will be no more events.
func (s *Several) Gone(ref *pb.WorkloadRef, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := ref.GetNamespace() + "/" + ref.GetName()
	if s.diaries[name] != nil {
		s.print(now, name, []string{"no longer under hold"})
		delete(s.diaries, name)
	}
}

// Close ends the printing. It is called once.
func (s *Several) Close() {
	s.clock.stop()
}

func (s *Several) print(now time.Time, name string, lines []string) {
	for _, line := range lines {
		_, _ = fmt.Fprintln(s.w, stamped(now.Sub(s.start), name+"  "+line))
	}
}
