// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// checkEnds drives the clock, and returns an error unless a decision that has nothing to write comes to a write, to rest, to a wait
// for a time of the policy or for other releases, or fails with the reason of its wait.
func checkEnds(o Observation, d Decision) error {
	reasons := map[Wait]string{WaitProgress: ReasonDeadline, WaitCleanup: ReasonCleanupDeadline, WaitTraffic: ReasonTrafficDeadline}
	for range 20 {
		if a, ok := d.Action.(SetStable); ok && a.Why == whySaveWait {
			o.Record, o.Waiting = &a.Record, d.Waiting
			d = reconcile(o)
		}
		switch {
		case d.Action != nil, d.State == pb.State_STATE_FAILED, atRestIn(d.State), d.Wait == WaitAdmission:
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
		d = reconcile(o)
		if d.State == pb.State_STATE_FAILED && (d.Reason != reasons[before.Wait] || !strings.Contains(d.Message, "(since ")) {
			return fmt.Errorf("%s, %s failed with %s: %s", before.State, before.Reason, d.Reason, d.Message)
		}
	}
	return fmt.Errorf("%s, %s still waits", d.State, d.Reason)
}

// TestEveryWaitEnds checks that every scenario in which the planner waits fails at its deadline.
func TestEveryWaitEnds(t *testing.T) {
	waits := 0
	eachScenario(t, func(t *testing.T, d *datadriven.TestData, o Observation) {
		decision := reconcile(o)
		if !decision.Deadline.IsZero() {
			waits++
		}
		if err := checkEnds(o, decision); err != nil {
			t.Errorf("%s: %v", d.Pos, err)
		}
	})
	assert.GreaterOrEqual(t, waits, 20, "only %d scenarios wait", waits)
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
	decide(Decision{State: pb.State_STATE_VERIFYING, Reason: ReasonLabelling, Action: LabelServing{}})
	got := decide(wait)
	assert.True(t, got.Waiting.Since.Equal(begun), "a serving label began the wait anew: %s", got.Waiting.Since)
	decide(Decision{State: pb.State_STATE_VERIFYING, Reason: traffic.ReasonWriting, Action: SetTraffic{}})
	if got := decide(wait); !got.Waiting.Since.Equal(begun) {
		t.Errorf("the repair of a route that another client reverted began the wait anew: %s", got.Waiting.Since)
	}
	decide(Decision{State: pb.State_STATE_READY, Reason: ReasonBatchReady})
	assert.True(t, decide(wait).Waiting.Since.After(begun), "a wait that ended and begins again does not begin anew")
	o.Now = o.Now.Add(time.Hour)
	got = decide(wait)
	assert.True(t, got.State == pb.State_STATE_FAILED && got.Reason == ReasonTrafficDeadline, "%s, %s", got.State, got.Reason)
	got = decide(wait)
	assert.Equal(t, pb.State_STATE_FAILED, got.State, "%s after it had failed", got.State)
}

// TestDeadlineSurvivesReverterAndRestarts simulates a day of a release whose route another client reverts every 25 minutes, while the
// driver restarts every 20 minutes and the gateway does not follow. The release fails at its deadline and names the other client. Once
// both end, it continues.
func TestDeadlineSurvivesReverterAndRestarts(t *testing.T) {
	const text = `workload vllm replicas=4 revision=B hold
record phase=Progressing stable=A update=B since=1h
groups 0-3 revision=A ready=2h
canary vllm-b replicas=2 carries=B target=50%%#0@30s
groups 0-1 revision=B ready=1m serving
traffic requested=50 for=2 isolated prepared pods=0,1 weight=%d seen=%d`
	world := func(weight, seen int) Observation { return observed(t, fmt.Sprintf(text, weight, seen)) }
	r := world(0, 0).Record
	var kept Waiting
	var failed time.Duration
	writes := 0
	look := func(at time.Duration, o Observation, reverted bool) Decision {
		o.Record, o.Waiting, o.Now = r, kept, noon.Add(at)
		if reverted {
			for _, route := range o.Traffic.World.Routes {
				route.SetManagedFields([]metav1.ManagedFieldsEntry{{
					Manager: "kustomize-controller", Time: &metav1.Time{Time: o.Now}, FieldsType: `"f:spec"`,
				}})
			}
		}
		d := reconcile(o)
		kept = d.Waiting
		if a, ok := d.Action.(SetStable); ok {
			writes++
			r = &a.Record
		}
		return d
	}
	for at := time.Duration(0); at < 24*time.Hour; at += time.Minute {
		if at%(40*time.Minute) == 0 {
			kept = Waiting{}
		} else if at%(20*time.Minute) == 0 { // another driver leads again, which has waited for something else
			kept = Waiting{For: "something else", Since: noon}
		}
		if at > 0 && at%(25*time.Minute) == 0 {
			if d := look(at, world(0, 0), true); d.Action == nil || !strings.Contains(d.Message, "kustomize-controller has changed HTTPRoute") {
				t.Fatalf("after %s the route is repaired by %v: %s", at, d.Action, d.Message)
			}
		}
		d := look(at, world(50, 0), false)
		switch is := d.State == pb.State_STATE_FAILED; {
		case is && failed == 0:
			failed = at
		case !is && failed > 0:
			t.Fatalf("after %s it waits again: %s, %s", at, d.State, d.Message)
		}
		require.False(t, failed > 0 && (d.Reason != ReasonTrafficDeadline || !strings.Contains(d.Message, "kustomize-controller")),
			"after %s: %s, %s", at, d.Reason, d.Message)
	}
	assert.True(t, failed == record.DefaultProgressDeadline && writes <= 2, "it failed after %s, with %d writes of the record", failed, writes)
	look(24*time.Hour, world(50, 50), false)
	if d := look(24*time.Hour, world(50, 50), false); d.State != pb.State_STATE_READY || r.Release.Waiting != (record.Waiting{}) {
		t.Errorf("once the gateway follows: %s, %s, with %+v in the record", d.State, d.Message, r.Release.Waiting)
	}
}

// TestRollbackDeadlineSurvivesReverter simulates a day of a rollback whose group stays broken, while another client overwrites the hold every
// 25 minutes, or before the driver sees it in force. The rollback fails at its deadline, stays failed, and names the other client.
func TestRollbackDeadlineSurvivesReverter(t *testing.T) {
	for name, every := range map[string]time.Duration{"every 25 minutes": 25 * time.Minute, "at once": time.Minute} {
		t.Run(name, func(t *testing.T) {
			var failed time.Duration
			var kept Waiting
			r := observed(t, "workload vllm replicas=2 revision=B hold\nrecord phase=RollingBack stable=A update=B since=0s set=hold").Record
			for at := time.Duration(0); at < 24*time.Hour; at += time.Minute {
				o := observed(t, `workload vllm replicas=2 revision=B hold
record phase=RollingBack stable=A update=B since=0s set=hold
groups 0 revision=A ready=2h
groups 1 revision=A reason=CrashLoopBackOff lost=0s`)
				o.Record, o.Waiting, o.Now = r, kept, noon.Add(at)
				reverted := at > 0 && at%every == 0
				if reverted {
					o.Stable.Rolling, o.Stable.RolledBy = rollingOf(0, "2", "0"), "kustomize-controller"
				}
				d := reconcile(o)
				kept = d.Waiting
				if a, ok := d.Action.(SetStable); ok {
					require.True(t, !reverted || a.Rolling != nil && isHold(*a.Rolling), "after %s the hold is not restored: %s", at, d.Action)
					r = &a.Record
				}
				switch is := d.State == pb.State_STATE_FAILED; {
				case is && failed == 0:
					failed = at
				case !is && failed > 0:
					t.Fatalf("after %s it waits again: %s, %s", at, d.State, d.Message)
				}
				if failed > 0 {
					require.Equal(t, 1, strings.Count(d.Message, "kustomize-controller has changed"), "after %s: %s, %s", at, d.Reason, d.Message)
					culprit := "vllm-1"
					if reverted {
						culprit = "Keep kustomize-controller from changing the rolling update configuration"
					}
					require.Contains(t, d.Message, culprit, "after %s", at)
				}
			}
			assert.Equal(t, record.DefaultProgressDeadline, failed, "after that time it fails")
		})
	}
}

// TestRepairNamesFieldManager checks that a decision that repairs a setting says who changed it, unless that was Lockstep itself.
func TestRepairNamesFieldManager(t *testing.T) {
	for _, by := range []string{"kustomize-controller", record.FieldManager, ""} {
		held := midRelease()
		held.Policy.Style, held.Record.Saved = pb.Style_STYLE_CANARY, parsePace("1/0")
		held.Stable.Rolling, held.Stable.RolledBy = parsePace("2/0"), by
		bounds, child := rolesObservation(1, 1), rolesObservation(1, 1)
		bounds.Bounds.Min["0-prefill"]--
		bounds.BoundsBy = by
		child.Children[0].Replicas--
		child.Children[0].ScaledBy = by
		for name, o := range map[string]Observation{"hold": held, "bounds": bounds, "child": child} {
			d := reconcile(Judge(o))
			assert.True(t, d.Action != nil && strings.Contains(d.Message, by+" has changed") == (by == "kustomize-controller"),
				"%s changed by %q: %v, %s", name, by, d.Action, d.Message)
			assert.False(t, by == "kustomize-controller" && !strings.HasPrefix(d.Overwritten, by), "%s: it is not remembered: %+v", name, d.Waiting)
		}
	}
}
