// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"
	"time"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// TestDeadline checks that the deadline counts from the last step towards the goal: the request, a group's first
// readiness, or the loss of a group that is not tolerated. Neither flapping nor a restart of the driver moves it.
func TestDeadline(t *testing.T) {
	ready := func(first string) Group {
		return Group{Revision: "B", Ready: true, ReadySince: ago(first), FirstReady: ago(first)}
	}
	starting := func(lost string) Group { return Group{Revision: "B", LostAt: ago(lost)} }
	missing := Group{}
	for _, tc := range []struct {
		name      string
		asked     string // how long ago the target was
		threshold string
		minReady  time.Duration
		groups    []Group
		want      string // how long ago the deadline began to count
		blocking  int    // the group that is named once it has passed; -1: it has become ready by then
	}{
		{"nothing yet", "10m", "", 0, []Group{missing, missing}, "10m", 0},
		{"first pods", "10m", "", 0, []Group{starting("9m"), starting("8m")}, "9m", 0},
		{"one is ready", "10m", "", 0, []Group{ready("5m"), starting("9m")}, "5m", 1},
		{"ready again after flapping", "10m", "", 0, []Group{{Revision: "B", Ready: true, ReadySince: ago("1s"), FirstReady: ago("5m")}, starting("9m")}, "5m", 1},
		{"lost late", "10m", "", 0, []Group{ready("9m"), {Revision: "B", FirstReady: ago("8m"), LostAt: ago("2m")}}, "2m", 1},
		{"lost and recreated at another revision", "10m", "", 0, []Group{ready("9m"), {Revision: "A", LostAt: ago("3m")}}, "3m", 1},
		{"the second loss is the one that is not tolerated", "10m", "50%", 0, []Group{starting("9m"), starting("4m"), starting("2m"), starting("1m")}, "2m", 0},
		{"too short for minReady", "10m", "", time.Minute, []Group{ready("9m"), {Revision: "B", Ready: true, ReadySince: ago("30s"), LostAt: ago("3m")}}, "3m", -1},
		{"the target is newer", "1m", "", 0, []Group{ready("9m"), starting("9m")}, "1m", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := midRelease()
			o.Policy.Style, o.Policy.MinReady, o.Policy.ProgressDeadline = pb.Style_STYLE_CANARY, tc.minReady, time.Hour
			o.Policy.FailureThreshold, _ = record.ParseQuantity(tc.threshold)
			o.Stable.Replicas, o.Record.Release.PhaseAt = len(tc.groups), ago("1h")
			o.Record.Release.UpdateRevision, o.Stable.Revision = "B", "B"
			c := &o.Added[0]
			c.Revision, c.Carries, c.Replicas = "B", "B", len(tc.groups)
			c.Target = &record.Target{Groups: "100%", At: ago(tc.asked)}
			for i, g := range tc.groups {
				g.Index, g.Leader = i, "vllm-new-"+string(rune('0'+i))
				c.Groups = append(c.Groups, g)
			}
			p := measureProgress(o)
			waiting := Decision{State: pb.State_STATE_UPGRADING, Progress: p}
			d := limitWait(o, awaitGroups(p, waiting, p.Threshold))
			if want := ago(tc.want).Add(time.Hour); !d.Deadline.Equal(want) || d.State == pb.State_STATE_FAILED {
				t.Errorf("the deadline is in %s, want %s: %s", d.Deadline.Sub(noon), want.Sub(noon), d.State)
			}
			if tc.blocking < 0 {
				return
			}
			o.Now = d.Deadline
			waiting.Progress = measureProgress(o)
			d = limitWait(o, awaitGroups(waiting.Progress, waiting, p.Threshold))
			if d.State != pb.State_STATE_FAILED || !strings.Contains(d.Message, c.Groups[tc.blocking].Leader) {
				t.Errorf("at the deadline: %s, %s", d.State, d.Message)
			}
		})
	}
}
