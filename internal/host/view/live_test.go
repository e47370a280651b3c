// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/internal/host"
)

// screen is a terminal that supports the sequences that Live writes.
type screen struct {
	mu    sync.Mutex
	lines []string
}

var upAndClear = regexp.MustCompile("^\x1b\\[([0-9]+)A\r\x1b\\[J")

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := string(p)
	if match := upAndClear.FindStringSubmatch(text); match != nil {
		up, err := strconv.Atoi(match[1])
		if err != nil {
			return 0, err
		}
		s.lines = s.lines[:len(s.lines)-up]
		text = strings.TrimPrefix(text, match[0])
	}
	if text = Plain(strings.NewReplacer(noWrap, "", wrap, "").Replace(text)); text != "" {
		s.lines = append(s.lines, strings.Split(strings.TrimSuffix(text, "\n"), "\n")...)
	}
	return len(p), nil
}

func TestLiveWithoutContext(t *testing.T) {
	t.Parallel()
	s := &screen{}
	live := NewLive(s, noon, func() int { return 0 })
	live.Observe(host.Event{Kind: host.EventRetrying, Time: noon, Message: "retrying"})
	live.Close()
	assert.Empty(t, cmp.Diff([]string{"    0s  retrying"}, s.lines), "screen: -want, +got")
}

// Each workload is drawn until its release ends, of which a line stays.
func TestLiveShowsSeveralWorkloads(t *testing.T) {
	t.Parallel()
	s := &screen{}
	live := NewLive(s, noon, func() int { return 60 })
	live.Observe(host.Event{Kind: EventStatus, Time: noon, Context: named("b", upgrading())})
	live.Observe(host.Event{Kind: EventStatus, Time: noon, Context: named("a", upgrading())})
	live.End(host.Event{Kind: EventStatus, Time: noon, Context: named("b", completed())})
	live.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	text := strings.Join(s.lines, "\n")
	assert.True(t, s.lines[0] == "    0s  default/b  completed: 4 groups run revision 7d4f5b6c8" && strings.Count(text, "Workload  ") == 1,
		"want a line of b's end above the status of a:\n%s", text)
}
