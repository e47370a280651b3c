// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// settled are the states in which nothing changes by itself.
var settled = []pb.State{
	pb.State_STATE_UNMANAGED, pb.State_STATE_HOLDING, pb.State_STATE_READY, pb.State_STATE_COMPLETED,
	pb.State_STATE_ROLLED_BACK, pb.State_STATE_NOTHING_TO_RELEASE,
}

// tally counts what the runs encountered, so that a model without progress is noticed.
type tally struct {
	runs, steps int
	ends        map[string]int
}

// TestReleases drives whole releases through the model: a random schedule of all actors; then faults stop and the release
// must settle; then the host ends it and nothing may be left.
func TestReleases(t *testing.T) {
	total := tally{ends: map[string]int{}}
	rounds := 20
	if testing.Short() {
		rounds = 2
	}
	repeat(t, rounds, total.release)
	t.Logf("%d runs of %d steps", total.runs, total.steps)
	for _, end := range slices.Sorted(maps.Keys(total.ends)) {
		t.Logf("%6d %s", total.ends[end], end)
	}
}

// repeat checks a property repeatedly. A seed that is set, as `make test` does so that every change is judged by the same
// schedules, is that of the first round, and the next ones follow from it. Otherwise all seeds are new.
func repeat(t *testing.T, rounds int, property func(*rapid.T)) {
	t.Helper()
	seed := flag.Lookup("rapid.seed").Value
	first, err := strconv.ParseUint(seed.String(), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	set := func(to uint64) {
		if err := seed.Set(strconv.FormatUint(to, 10)); err != nil {
			t.Fatal(err)
		}
	}
	defer set(first)
	for round := range rounds {
		if first != 0 {
			set(first + uint64(round)<<32)
		}
		rapid.Check(t, property)
	}
}

// release is one run.
func (total *tally) release(rt *rapid.T) {
	c := newCluster(rt)
	steps := rapid.IntRange(5, 80).Draw(rt, "steps")
	c.initialize()
	c.edit("B")
	c.tick(time.Second, 0)
	c.initialize()
	for range steps {
		c.act()
	}
	total.runs++
	total.steps += steps
	total.ends["in flight: "+c.settle().Reason]++
	if rapid.IntRange(0, 9).Draw(rt, "deleted") == 0 {
		total.ends["at the end: deleted"]++
		c.deleteWorkload()
		return
	}
	end := "at the end: " + c.end().Reason
	if c.handovers > 0 {
		end += fmt.Sprintf(", after %d handovers", min(c.handovers, 3))
	}
	total.ends[end]++
}

// act is one step of any actor, most often of time and the driver.
func (c *cluster) act() {
	pick := func(of ...string) string { return rapid.SampledFrom(of).Draw(c.t, "how") }
	switch n := rapid.IntRange(0, 99).Draw(c.t, "act"); {
	case n < 30:
		c.pass()
	case n < 60:
		c.step(pick("write", "write", "write", "write", "twice", "delay", "late", "lose"))
	case n < 72:
		c.upgrade(pick("0%", "25%", "50%", "100%", "1", "3", "9"))
	case n < 76:
		c.setWeight(rapid.SampledFrom([]int{0, 10, 50, 100}).Draw(c.t, "weight"))
	case n < 80:
		c.finalize(record.Promoting)
	case n < 82:
		c.finalize(record.CleaningUp)
	case n < 84:
		if c.initialize(); c.handovers > 0 && c.phase() == record.Nothing {
			c.edit(pick("A", "B", "C", "D"))
		}
	case n < 86:
		c.scale(rapid.IntRange(0, 6).Draw(c.t, "to"))
	case n < 87:
		c.autoscale(rapid.IntRange(1, 6).Draw(c.t, "to"), rapid.IntRange(0, 3).Draw(c.t, "foreign") == 0)
	case n < 90:
		c.edit(pick("A", "B", "C", "D"))
	case n < 93:
		if rapid.Bool().Draw(c.t, "tune") {
			c.editAutoscaler()
		} else {
			c.editRolling()
		}
	case n < 94:
		if how := pick("apply the route again", "remove the fence", "others release"); how != "others release" {
			c.route(how)
		} else {
			c.room = rapid.SampledFrom([]*int{nil, ptr.To(0), ptr.To(1), ptr.To(3)}).Draw(c.t, "room")
			c.note("others release")
		}
	case n < 96:
		c.editCanary(pick("scale up", "scale to 0", "edit template", "delete", "delete in the foreground"))
	default:
		c.injectFault(pick("flap", "break", "lose", "budget", "fail", "fail"))
	}
}

// waitForUser are the reasons of failures that only the user or the host can end.
var waitForUser = []string{ReasonMixedRevisions, ReasonScaledToZero, ReasonUnreleased, ReasonStableShrunk}

// settle stops all faults. The release must come to rest within bounds, and stay there.
func (c *cluster) settle() Decision {
	c.note("faults stop")
	c.faults, c.pending, c.turns, c.room = false, nil, turns{counted: true}, nil
	defer func() { c.turns.counted = false }()
	quiet := 0
	for range 400 {
		c.repair()
		c.tick(20*time.Second, 1)
		c.follow()
		d := c.drive()
		if !slices.Contains(settled, d.State) && !slices.Contains(waitForUser, d.Reason) {
			quiet = 0
			continue
		}
		if quiet++; quiet > 5 {
			c.checkRest(d)
			return d
		}
	}
	c.fail("not settled: %+v", c.decide())
	return Decision{}
}

// end has the host end the release, unless it did.
func (c *cluster) end() Decision {
	c.finalize(rapid.SampledFrom([]record.Phase{record.Promoting, record.CleaningUp}).Draw(c.t, "end"))
	ended := c.phase()
	d := c.settle()
	if d.Reason == ReasonStableShrunk {
		c.scale(c.record.Release.Replicas)
		d = c.settle()
	}
	if d.Reason == ReasonMixedRevisions {
		c.edit(c.record.Release.StableRevision)
		d = c.settle()
	}
	want := map[record.Phase]pb.State{
		record.Promoting: pb.State_STATE_COMPLETED, record.Promoted: pb.State_STATE_COMPLETED,
		record.Standby: pb.State_STATE_COMPLETED, record.HandingOver: pb.State_STATE_COMPLETED,
		record.CleaningUp: pb.State_STATE_ROLLED_BACK, record.RollingBack: pb.State_STATE_ROLLED_BACK,
		record.Nothing: pb.State_STATE_NOTHING_TO_RELEASE,
	}[ended]
	if want != 0 && d.State != want {
		c.fail("the release was ended as %s and is %s, %s", ended, d.State, d.Reason)
	}
	return d
}

// deleteWorkload deletes the workload. The added workloads must not block garbage collection.
func (c *cluster) deleteWorkload() {
	c.stable.deleting = true
	c.touch(c.stable)
	d := c.drive()
	for _, s := range c.added {
		if s.held {
			c.fail("%s blocks the deletion of %s: %+v", d.Reason, s.name, d)
		}
	}
}

// checkRest: only the hold and the user's configuration are left of a release that ended.
func (c *cluster) checkRest(d Decision) {
	c.checkScalerAtRest(c.observe())
	if c.record == nil {
		return
	}
	if c.requestedReplicas >= 0 && c.stable.replicas != c.requestedReplicas {
		c.fail("%s with %d groups, and %d were requested", d.State, c.stable.replicas, c.requestedReplicas)
	}
	c.checkTrafficAtRest()
	waits := d.State == pb.State_STATE_HOLDING || d.State == pb.State_STATE_READY || slices.Contains(waitForUser, d.Reason)
	c.checkLabels(d)
	c.checkBudgets(d)
	c.checkHistory(c.observe(), d)
	if len(c.added) > 0 && !waits {
		c.fail("%s with %s left", d.State, c.added[0].name)
	}
	batch := c.inPlace() && (d.State == pb.State_STATE_READY || d.State == pb.State_STATE_HOLDING)
	if !batch && !record.SameRolling(c.stable.rolling, record.Hold()) {
		c.fail("%s with %v", d.State, c.stable.rolling)
	}
	if !record.SameRolling(c.record.Saved, c.userRolling) {
		c.fail("the user's %s was saved as %s", describeRolling(c.userRolling), describeRolling(c.record.Saved))
	}
	switch d.State {
	case pb.State_STATE_COMPLETED:
		if !c.stable.allReady() || (!c.mixed && !c.stable.at(c.stable.leaders.current)) {
			c.fail("completed with %d groups of %d at %v", len(c.stable.groups), c.stable.replicas, c.stable.revisions())
		}
	case pb.State_STATE_ROLLED_BACK:
		if !c.stable.at(c.record.Release.StableRevision) {
			c.fail("rolled back with groups at %v", c.stable.revisions())
		}
	default:
	}
}
