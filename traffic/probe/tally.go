// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"strings"
)

// namesShown is the maximum number of leaders in a message.
const namesShown = 5

// tally summarizes the readings of a drain's leaders.
type tally struct {
	metric      string
	leaders     int
	zero        int
	total       float64
	running     []string // leaders with requests, and how many
	failed      []string // leaders whose metric can't be read, and why
	unread      []string // leaders without a first reading
	unreachable []string // leaders that accept no connections, and why
}

func (s *tally) add(l Leader, r reading) {
	switch {
	case !r.completed:
		s.unread = append(s.unread, l.Name)
	case r.unreachable:
		s.unreachable = append(s.unreachable, fmt.Sprintf("%s (%s)", l.Name, r.problem))
	case r.problem != "":
		s.failed = append(s.failed, fmt.Sprintf("%s (%s)", l.Name, r.problem))
	case r.running > 0:
		s.total += r.running
		s.running = append(s.running, fmt.Sprintf("%g on %s", r.running, l.Name))
	default:
		s.zero++
	}
}

func (s *tally) drained() bool { return s.zero+len(s.unreachable) == s.leaders }

// state returns the state of a drain that has not ended.
func (s *tally) state() State {
	if len(s.failed) > 0 {
		return Failed
	}
	return Pending
}

// success returns the message of a drained tally.
func (s *tally) success() string {
	message := fmt.Sprintf("%s is 0 on %d of %d leaders", s.metric, s.zero, s.leaders)
	if len(s.unreachable) == 0 {
		return message
	}
	return message + "; " + unreachablePrefix + names(s.unreachable)
}

const unreachablePrefix = "counted as drained because they accept no connections: "

// rest returns what a drain still waits for.
func (s *tally) rest() string {
	var parts []string
	if len(s.running) > 0 {
		parts = append(parts, fmt.Sprintf("%s is %g: %s", s.metric, s.total, names(s.running)))
	}
	if len(s.failed) > 0 {
		parts = append(parts, fmt.Sprintf("%s can't be read on %s", s.metric, names(s.failed)))
	}
	if len(s.unread) > 0 {
		parts = append(parts, "no response yet from "+names(s.unread))
	}
	if len(s.unreachable) > 0 {
		parts = append(parts, unreachablePrefix+names(s.unreachable))
	}
	return strings.Join(parts, "; ")
}

func names(list []string) string {
	if len(list) <= namesShown {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:namesShown], ", "), len(list)-namesShown)
}
