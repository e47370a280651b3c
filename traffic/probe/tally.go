// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"strings"
)

// namesShown is how many leaders a sentence names.
const namesShown = 5

// tally sums up for people what the leaders of a drain told.
type tally struct {
	metric  string
	leaders int
	zero    int
	total   float64
	running []string // leaders that still have requests, with how many
	silent  []string // leaders that don't tell, with why
	unasked []string // leaders without a first answer
	gone    []string // leaders that have no requests because they are gone, with why
}

func (s *tally) add(l Leader, r reading) {
	switch {
	case !r.made:
		s.unasked = append(s.unasked, l.Name)
	case r.gone:
		s.gone = append(s.gone, fmt.Sprintf("%s (%s)", l.Name, r.problem))
	case r.problem != "":
		s.silent = append(s.silent, fmt.Sprintf("%s (%s)", l.Name, r.problem))
	case r.running > 0:
		s.total += r.running
		s.running = append(s.running, fmt.Sprintf("%g on %s", r.running, l.Name))
	default:
		s.zero++
	}
}

func (s *tally) drained() bool { return s.zero+len(s.gone) == s.leaders }

// state is that of a drain that goes on.
func (s *tally) state() State {
	if len(s.silent) > 0 {
		return Failed
	}
	return Pending
}

// success is the sentence about a drain that is over.
func (s *tally) success() string {
	said := fmt.Sprintf("%s reads 0 on %d of %d leaders", s.metric, s.zero, s.leaders)
	if len(s.gone) == 0 {
		return said
	}
	return said + "; counted as drained because nobody can connect: " + names(s.gone)
}

// rest says what a drain still waits for.
func (s *tally) rest() string {
	var parts []string
	if len(s.running) > 0 {
		parts = append(parts, fmt.Sprintf("%s reads %g: %s", s.metric, s.total, names(s.running)))
	}
	if len(s.silent) > 0 {
		parts = append(parts, fmt.Sprintf("%s can't be read on %s", s.metric, names(s.silent)))
	}
	if len(s.unasked) > 0 {
		parts = append(parts, "there is no answer yet from "+names(s.unasked))
	}
	if len(s.gone) > 0 {
		parts = append(parts, "counted as drained because nobody can connect: "+names(s.gone))
	}
	return strings.Join(parts, "; ")
}

func names(list []string) string {
	if len(list) <= namesShown {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:namesShown], ", "), len(list)-namesShown)
}
