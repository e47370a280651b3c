// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"flag"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/words"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// observed is a context with three ready groups and g.
func observed(second int, g *pb.Group) host.Event {
	c := upgrading()
	c.Groups = append(c.GetGroups()[:3:3], g)
	return host.Event{Kind: host.EventProgress, Time: noon.Add(time.Duration(second) * time.Second), Context: c}
}

// unready is a canary group with a reason.
func unready(reason string) *pb.Group {
	return &pb.Group{
		Index: 1, Role: pb.GroupRole_GROUP_ROLE_CANARY, Leader: "c-1", Pod: "c-1", Reason: reason, Message: reason + ": is so",
	}
}

// TestChangesOfGroups runs testdata/changes: the lines for what is observed of group 1, one after the other.
func TestChangesOfGroups(t *testing.T) {
	t.Parallel()
	datadriven.RunTest(t, "testdata/changes/groups.txt", func(t *testing.T, d *datadriven.TestData) string {
		var c changes
		var told strings.Builder
		for line := range strings.SplitSeq(d.Input, "\n") {
			for _, said := range c.lines(parseEvent(t, line)) {
				told.WriteString(line + ": " + said + "\n")
			}
		}
		return told.String()
	})
}

// parseEvent returns what is observed of group 1, which is of a role, or the request of a rollback.
func parseEvent(t *testing.T, line string) host.Event {
	t.Helper()
	var after time.Duration
	g, c := unready(""), upgrading()
	message := c.GetMessage()
	role := words.Line(t, line, func(f *flag.FlagSet) {
		f.DurationVar(&after, "after", 0, "noon")
		f.BoolVar(&g.Ready, "ready", false, "the group is")
		f.BoolVar(&g.Updated, "updated", false, "the group is")
		f.Func("reason", "why it is not", func(reason string) error { g.Reason, g.Message = reason, reason+": is so"; return nil })
		f.Func("state", "of the release", words.Enum(&c.State, "STATE_", pb.State_value))
		f.StringVar(&message, "message", message, "of the state")
	})
	if role == "rolling-back" {
		return host.Event{Kind: host.EventRollingBack, Time: noon, Message: "rolling back to the stable revision"}
	}
	if g.Role = pb.GroupRole(pb.GroupRole_value["GROUP_ROLE_"+strings.ToUpper(role)]); g.Ready {
		g.Pod, g.Reason, g.Message = "", "", ""
	}
	e := observed(0, g)
	e.Time, e.Context.State, e.Context.Message = noon.Add(after), c.GetState(), message
	return e
}

func TestChangesOfStates(t *testing.T) {
	t.Parallel()
	failed := func(message string) *pb.BatchContext {
		c := upgrading()
		c.State, c.Reason, c.Message = pb.State_STATE_FAILED, "ProgressDeadlineExceeded", message
		return c
	}
	promoting := func(done int32, message string) *pb.BatchContext {
		c := completed()
		c.State, c.UpdatedReady, c.Message = pb.State_STATE_PROMOTING, done, message
		return c
	}
	var d changes
	var got []string
	for _, c := range []*pb.BatchContext{
		failed("no new group; group 1: is starting"), failed("no new group; group 1: is not ready"),
		promoting(0, "0 of 4"), promoting(0, "0 of 4; group 3: is being deleted"), promoting(1, "1 of 4"),
	} {
		c.Groups = nil
		got = append(got, d.lines(host.Event{Kind: EventStatus, Time: noon, Context: c})...)
	}
	want := []string{
		"failed (ProgressDeadlineExceeded): no new group; group 1: is starting",
		"promoting: groups 0/4 ready at 7d4f5b6c8", "promoting: groups 1/4 ready at 7d4f5b6c8",
	}
	assert.Empty(t, d.lines(host.Event{Kind: host.EventProgress, Time: noon, Context: completed()}), "lines for a state that the host reports itself")
	assert.Empty(t, cmp.Diff(want, got), "lines: -want, +got")
}

func TestProgressSaysBasisOfShare(t *testing.T) {
	t.Parallel()
	promoting := routedRelease()
	promoting.State, promoting.UpdatedReady = pb.State_STATE_PROMOTING, 1
	counted := upgrading()
	counted.State, counted.UpdatedReady = pb.State_STATE_PROMOTING, 1
	// The user's own groups follow once the second set is complete.
	second := upgrading()
	second.Style, second.State, second.Updated, second.UpdatedReady, second.Planned = pb.Style_STYLE_BLUE_GREEN, pb.State_STATE_PROMOTING, 4, 4, 4
	for want, c := range map[string]*pb.BatchContext{
		"promoting: groups of the second set 4/4 ready at 7d4f5b6c8":                                  second,
		"upgrading: batch 2/3 (50%), 1/2 groups ready, stable 4/4 ready, canary gets 25% of requests": routedRelease(),
		"upgrading: batch 2/3 (50%), 1/2 groups ready, stable 4/4 ready, 20% of ready groups are new": upgrading(),
		"promoting: groups 1/4 ready at 7d4f5b6c8, canary gets 25% of requests":                       promoting,
		// It follows from the counts.
		"promoting: groups 1/4 ready at 7d4f5b6c8": counted,
	} {
		assert.Equal(t, want, Progress(c), "Progress(...)")
	}
}

// shared is a buffer for several goroutines.
type shared struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func TestLinesReportStuckGroupWithoutEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out shared
		printer := NewLines(&out, time.Now(), false)
		e := observed(0, unready("NotReady"))
		e.Time = time.Now()
		printer.Observe(e)
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock
		printer.Close()
		if got := strings.Count(out.b.String(), "NotReady"); got != 1 {
			t.Errorf("a stuck group is reported %d times in a minute without events, want once:\n%s", got, out.b.String())
		}
		if want := fmt.Sprintf("%6s  canary group 1", "10s"); !strings.Contains(out.b.String(), want) {
			t.Errorf("want %q:\n%s", want, out.b.String())
		}
	})
}
