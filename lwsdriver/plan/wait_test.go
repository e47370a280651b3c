// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// checkEnds drives the clock, and returns an error unless a decision that has nothing to write comes to a write, to rest, to a wait
// for a time of the policy or for other releases, or fails with the reason of its wait.
func checkEnds(o Observation, d Decision) error {
	reasons := map[Wait]string{WaitProgress: ReasonDeadline, WaitCleanup: ReasonCleanupDeadline, WaitTraffic: ReasonTrafficDeadline}
	for range 20 {
		switch {
		case d.Action != nil, d.State == pb.State_STATE_FAILED, atRestIn(d.State), d.Wait == WaitTurn:
			return nil
		case d.Recheck <= 0:
			return fmt.Errorf("%s, %s waits without an end", d.State, d.Reason)
		case d.Wait == WaitTimer:
			return nil
		case d.Deadline.IsZero():
			return fmt.Errorf("%s, %s has no deadline", d.State, d.Reason)
		}
		before := d
		o.Now, o.Waiting = o.Now.Add(d.Recheck), d.Waiting
		d = carryOn(o)
		if d.State == pb.State_STATE_FAILED && (d.Reason != reasons[before.Wait] || !strings.Contains(d.Message, "(since ")) {
			return fmt.Errorf("%s, %s failed with %s: %s", before.State, before.Reason, d.Reason, d.Message)
		}
	}
	return fmt.Errorf("%s, %s still waits", d.State, d.Reason)
}

// TestEveryWaitEnds checks that every scenario in which the planner waits fails at its deadline.
func TestEveryWaitEnds(t *testing.T) {
	waits := 0
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "plan" {
				return d.Expected
			}
			o, err := parseObservation(d.Input)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			decision := carryOn(o)
			if !decision.Deadline.IsZero() {
				waits++
			}
			if err := checkEnds(o, decision); err != nil {
				t.Errorf("%s: %v", d.Pos, err)
			}
			return d.Expected
		})
	})
	if waits < 20 {
		t.Errorf("only %d scenarios wait", waits)
	}
}

// TestWaitIsRemembered checks that a wait continues over observations and writes until what was asked for is reached, and that the
// next one begins anew.
func TestWaitIsRemembered(t *testing.T) {
	o := midRelease()
	o.Policy.ProgressDeadline = time.Hour
	decide := func(d Decision) Decision {
		d = limitWait(o, d)
		o.Waiting, o.Now = d.Waiting, o.Now.Add(10*time.Minute)
		return d
	}
	o.Record.Release.PhaseAt = ago("1h")
	wait := Decision{State: pb.State_STATE_VERIFYING, Reason: "RouteNotObserved", Wait: WaitTraffic}
	begun := o.Now
	for name, d := range map[string]Decision{"wait": wait, "again": wait} {
		if got := decide(d); !got.Waiting.Since.Equal(begun) || !got.Deadline.Equal(begun.Add(time.Hour)) {
			t.Errorf("%s: since %s, deadline %s", name, got.Waiting.Since, got.Deadline)
		}
	}
	decide(Decision{State: pb.State_STATE_VERIFYING, Reason: ReasonMarking, Action: MarkLeader{}})
	if got := decide(wait); !got.Waiting.Since.Equal(begun) {
		t.Errorf("a mark began the wait anew: %s", got.Waiting.Since)
	}
	decide(Decision{State: pb.State_STATE_VERIFYING, Reason: traffic.ReasonWriting, Action: SetTraffic{}})
	if got := decide(wait); !got.Waiting.Since.Equal(begun) {
		t.Errorf("the repair of a route that another client reverted began the wait anew: %s", got.Waiting.Since)
	}
	decide(Decision{State: pb.State_STATE_READY, Reason: ReasonBatchReady})
	if got := decide(wait); !got.Waiting.Since.After(begun) {
		t.Error("a wait that ended and begins again does not begin anew")
	}
	o.Now = o.Now.Add(time.Hour)
	if got := decide(wait); got.State != pb.State_STATE_FAILED || got.Reason != ReasonTrafficDeadline {
		t.Errorf("%s, %s", got.State, got.Reason)
	}
	if got := decide(wait); got.State != pb.State_STATE_FAILED {
		t.Errorf("%s after it had failed", got.State)
	}
}
