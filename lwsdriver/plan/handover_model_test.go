// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// passedPin is that of a stable Service which leads to the second set.
const handedOverPin = "second set"

// successor is the new workload of a handover, while the old object still exists.
type successor struct {
	set     *set
	record  *record.Record
	history []Entry
	edited  bool // its template was edited when nothing was left to compare it with
}

func (c *cluster) handsOver() bool { return c.policy.Adopt }

// serving returns the name of the workload's object.
func (c *cluster) serving() string {
	if c.next != nil {
		return c.next.set.name
	}
	return c.stable.name
}

// applyHandover is the API server: the writes that make the second set the workload.
func (c *cluster) applyHandover(action Action, versions map[string]int) bool {
	switch a := action.(type) {
	case TransferHistory:
		i := slices.IndexFunc(c.history, func(e Entry) bool { return e.Revision == a.Revision })
		if i < 0 || c.phase() != record.HandingOver || c.next != nil {
			return false // another owner has it
		}
		c.transferred = append(c.transferred, c.history[i])
		c.history = slices.Delete(slices.Clone(c.history), i, i+1)
		return true
	case HandOver:
		i := slices.IndexFunc(c.added, func(s *set) bool { return s.name == a.Name })
		if i < 0 || versions[a.Name] != c.added[i].version {
			return false
		}
		s := c.added[i]
		c.checkHandOver(s)
		rec, edited := a.Record, s.template != s.made && s.carries != c.stable.template
		s.carries, s.made, s.held, s.target, s.rolling, s.template = "", "", false, nil, record.Hold(), c.stable.template
		c.touch(s)
		c.added = slices.Delete(c.added, i, i+1)
		c.next = &successor{set: s, record: &rec, history: c.transferred, edited: edited}
		c.transferred = nil
		if versions[c.stable.name] != c.stable.version {
			c.userRolling, c.requestedReplicas = a.Record.Saved, -1 // changes of the old object since the decision are lost
		}
		return true
	case DeleteStable:
		if c.next == nil || c.stable.name != a.Name {
			return false
		}
		c.disturbed, c.mixed, c.restarts, c.handovers = true, c.next.edited, map[int]restarts{}, c.handovers+1
		c.stable, c.record, c.history, c.set, c.next = c.next.set, c.next.record, c.next.history, record.Hold(), nil
		c.pending = nil // it is for the deleted object, or for a changed entry
		return true
	}
	return false
}

// checkHandOver: nothing depends on the old object.
func (c *cluster) checkHandOver(s *set) {
	switch {
	case s.deleting:
		c.fail("the workload is handed over to %s, which is being deleted", s.name)
	case (len(c.stable.groups) > 0 || c.stable.replicas > 0) && c.requestedReplicas >= 0: // unless it was scaled since the decision
		c.fail("%s is handed over with %d groups of %s left", s.name, len(c.stable.groups), c.stable.name)
	case c.traffic != nil && (c.traffic.weight > 0 || c.traffic.seen > 0 || c.traffic.prepared || c.traffic.fenced):
		c.fail("%s is handed over with %+v", s.name, *c.traffic)
	case len(c.history) > 0 || len(c.budget) > 0:
		c.fail("%s is handed over with a history of %d and %d budgets left", s.name, len(c.history), len(c.budget))
	case c.scaler.exists && !c.scaler.elsewhere && c.scaler.of != s.name:
		c.fail("%s is handed over, and the autoscaler scales %s", s.name, c.scaler.of)
	}
}

// checkScaledToZero: the old groups are deleted only once the second set receives requests through the stable Service,
// unless that changed since the decision.
func (c *cluster) checkScaledToZero(a SetStable, versions map[string]int) {
	if a.Replicas == nil || *a.Replicas > 0 || c.stable.deleting {
		return
	}
	if r := c.traffic; r != nil && c.unfenced == versions["fence"] && (r.weight > 0 || r.seen > 0 || r.pin != handedOverPin || r.endpointsLag && r.canServe(c)) {
		c.fail("the groups are deleted with the traffic at %+v", *r)
	}
}

// TestHandovers drives several releases in a row that end in a handover, by random schedules: each ends, and leaves
// nothing but the workload, which is another object.
func TestHandovers(t *testing.T) {
	total := tally{ends: map[string]int{}}
	rounds := 10
	if testing.Short() {
		rounds = 1
	}
	repeat(t, rounds, func(rt *rapid.T) {
		c := newCluster(rt)
		c.policy.Style, c.policy.Adopt = pb.Style_STYLE_BLUE_GREEN, true
		for i := range 3 {
			total.handover(c, []string{"B", "C", "D"}[i])
		}
		total.ends[fmt.Sprintf("%d handovers", c.handovers)]++
		if n := len(c.stable.name); n > len("vllm-B") {
			c.fail("names grow: %s", c.stable.name)
		}
	})
	for _, end := range slices.Sorted(maps.Keys(total.ends)) {
		t.Logf("%6d %s", total.ends[end], end)
	}
}

// handover is one release, most likely promoted, and disturbed meanwhile.
func (total *tally) handover(c *cluster, template string) {
	c.initialize()
	c.edit(template)
	c.tick(time.Second, 0)
	c.initialize()
	c.upgrade("100%")
	promoted := rapid.IntRange(0, 12).Draw(c.t, "promoted after")
	for i := range rapid.IntRange(0, 60).Draw(c.t, "steps") {
		if i == promoted {
			c.finalize(record.Promoting)
		}
		if rapid.IntRange(0, 9).Draw(c.t, "calm") < 8 {
			c.pass()
			c.step(rapid.SampledFrom([]string{"write", "write", "write", "twice", "delay", "late", "lose"}).Draw(c.t, "how"))
			continue
		}
		c.act()
	}
	phase := c.phase()
	total.ends["left in "+string(phase)]++
	c.settle()
	c.finalize(rapid.SampledFrom([]record.Phase{record.Promoting, record.Promoting, record.CleaningUp}).Draw(c.t, "end"))
	d := c.settle()
	if d.Reason == ReasonMixedRevisions {
		c.edit(c.record.Release.StableRevision)
		d = c.settle()
	}
	total.ends["at the end: "+d.Reason]++
}
