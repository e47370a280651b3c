// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lockstep-rollouts/lockstep/internal/host"
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

func ready(role pb.GroupRole, updated bool) *pb.Group {
	return &pb.Group{Index: 1, Role: role, Leader: "c-1", Ready: true, Updated: updated}
}

func TestChangesOfGroups(t *testing.T) {
	t.Parallel()
	const canary, stable = pb.GroupRole_GROUP_ROLE_CANARY, pb.GroupRole_GROUP_ROLE_STABLE
	upgrade := Progress(upgrading())
	type course struct {
		reason string
		events []host.Event
		want   []string
	}
	cases := map[string]course{
		"Transient": {
			reason: "transient reasons are not reported, readiness is",
			events: []host.Event{
				observed(0, unready("PodMissing")), observed(1, unready("Starting")), observed(9, unready("NotReady")),
				observed(12, ready(canary, true)),
			},
			want: []string{upgrade, "group 1 ready (c-1)"},
		},
		"Slow": {
			reason: "a reason that lasts is reported once",
			events: []host.Event{
				observed(0, unready("NotReady")), observed(9, unready("NotReady")), observed(10, unready("NotReady")),
				observed(30, unready("NotReady")),
			},
			want: []string{upgrade, "canary group 1: pod c-1: NotReady: is so"},
		},
		"Error": {
			reason: "an error is reported at once, and once",
			events: []host.Event{
				observed(0, unready("Starting")), observed(1, unready("ErrImagePull")), observed(2, unready("ImagePullBackOff")),
				observed(3, unready("ErrImagePull")), observed(4, unready("ImagePullBackOff")),
			},
			want: []string{
				upgrade, "canary group 1: pod c-1: ErrImagePull: is so", "canary group 1: pod c-1: ImagePullBackOff: is so",
			},
		},
		"Again": {
			reason: "a reason is reported again after the group was ready",
			events: []host.Event{
				observed(0, unready("CrashLoopBackOff")), observed(1, ready(canary, true)), observed(2, unready("CrashLoopBackOff")),
			},
			want: []string{
				upgrade, "canary group 1: pod c-1: CrashLoopBackOff: is so", "group 1 ready (c-1)",
				"canary group 1: pod c-1: CrashLoopBackOff: is so",
			},
		},
		"Resumed": {
			reason: "groups that are ready at the start are not reported",
			events: []host.Event{observed(0, ready(canary, true)), observed(1, ready(canary, true))},
			want:   []string{upgrade},
		},
		"Replaced": {
			reason: "a group is replaced between two contexts",
			events: []host.Event{observed(0, ready(stable, false)), observed(1, ready(stable, true))},
			want:   []string{upgrade, "group 1 ready (c-1)"},
		},
		"HandedOver": {
			reason: "the canary becomes the workload, and no group starts",
			events: []host.Event{observed(0, ready(canary, true)), observed(1, ready(stable, true))},
			want:   []string{upgrade},
		},
		"OldFlaps": {
			reason: "the old group was unready for a moment, which was not reported",
			events: []host.Event{observed(0, ready(stable, false)), observed(1, unready("NotReady")), observed(2, ready(stable, false))},
			want:   []string{upgrade},
		},
	}
	rolling := func(second int, state pb.State, message string) host.Event {
		e := observed(second, unready("ImagePullBackOff"))
		e.Context.State, e.Context.Message = state, message
		return e
	}
	requested := host.Event{Kind: host.EventRollingBack, Time: noon, Message: "rolling back to the stable revision"}
	cases["Rollback"] = course{
		reason: "neither the old failure nor short steps are reported",
		events: []host.Event{
			requested, rolling(0, pb.State_STATE_FAILED, "the old failure"), rolling(1, pb.State_STATE_ROLLING_BACK, "first"),
			rolling(5, pb.State_STATE_ROLLING_BACK, "second"),
		},
		want: []string{"rolling back to the stable revision"},
	}
	cases["Restart"] = course{
		reason: "the short steps to batch 1 of another template are not reported",
		events: []host.Event{
			rolling(0, pb.State_STATE_PREPARING, "first"), rolling(1, pb.State_STATE_PREPARING, "second"), rolling(2, pb.State_STATE_HOLDING, "third"),
			rolling(13, pb.State_STATE_PREPARING, "stuck"),
		},
		want: []string{"preparing: stuck"},
	}
	cases["SlowRollback"] = course{
		reason: "a step that lasts is reported, and a failure of the rollback",
		events: []host.Event{
			requested, rolling(1, pb.State_STATE_ROLLING_BACK, "first"), rolling(5, pb.State_STATE_ROLLING_BACK, "second"),
			rolling(11, pb.State_STATE_ROLLING_BACK, "second"), rolling(12, pb.State_STATE_ROLLING_BACK, "second"),
			rolling(13, pb.State_STATE_FAILED, "stuck"),
		},
		want: []string{
			"rolling back to the stable revision", "rolling back: second", "canary group 1: pod c-1: ImagePullBackOff: is so",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var d changes
			var got []string
			for _, e := range tc.events {
				got = append(got, d.lines(e)...)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
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
	if lines := d.lines(host.Event{Kind: host.EventProgress, Time: noon, Context: completed()}); len(lines) != 0 {
		t.Errorf("lines for a state that the host reports itself: %q", lines)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lines: -want, +got:\n%s", diff)
	}
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
		if got := Progress(c); got != want {
			t.Errorf("Progress(...) = %q, want %q", got, want)
		}
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
