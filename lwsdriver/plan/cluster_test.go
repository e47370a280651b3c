// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// cluster is a model of an API server, LWS, a driver, a host and a user, with what they are owed.
type cluster struct {
	t       *rapid.T
	now     time.Time
	stable  *set
	added   []*set
	record  *record.Record
	policy  record.Policy
	traffic *trafficModel // nil: no traffic policy
	budget  []Budget

	history      []Entry
	historyLimit int
	seen         map[string]time.Time
	lost         map[string]time.Time
	log          []string
	born         int // objects created so far

	scaler scaler

	// Of an adoption.
	next    *successor
	passed  []Entry
	adopted int // how many there were
	owed    int // groups that the user asked for last; -1: that was lost with an object that was about to go

	admission bool // the admission policy is installed
	faults    bool // groups may fail

	// pending is a decision that was made on an older look and is not applied yet.
	pending *decided

	// What is owed.
	wish      rolling        // the user's own configuration, as written last
	set       rolling        // what the driver, or nobody, last set on stable
	asked     *record.Target // what the host asked for last, for the record's update revision
	retired   bool           // since then the canary was retired for another template, so the host must ask again
	disturbed bool           // somebody but the driver took stable capacity, and it has not come back
	mixed     bool           // somebody other than the driver had LWS roll since the release began
	restarts  map[int]restarts
	restarted int    // how many groups drivers restarted
	opened    int    // how often somebody took the fence off
	template  string // what the record has saved of the stable template
}

// restarts is the driver's memory of how often it restarted a group that was at a revision.
type restarts struct {
	n  int
	at string
}

type decided struct {
	action   Action
	versions map[string]int
}

func newCluster(t *rapid.T) *cluster {
	c := &cluster{t: t, now: noon, seen: map[string]time.Time{}, lost: map[string]time.Time{}, restarts: map[int]restarts{}, faults: true}
	c.admission = rapid.Bool().Draw(t, "admission policy")
	c.policy = record.Policy{
		Style:            rapid.SampledFrom([]pb.Style{pb.Style_STYLE_CANARY, pb.Style_STYLE_BLUE_GREEN, pb.Style_STYLE_PARTITION}).Draw(t, "style"),
		ProgressDeadline: record.DefaultProgressDeadline,
		ScaleDownDelay:   rapid.SampledFrom([]time.Duration{0, 2 * time.Minute}).Draw(t, "scaleDownDelay"),
		MinReady:         rapid.SampledFrom([]time.Duration{0, time.Minute}).Draw(t, "minReady"),
		FailureThreshold: quantity(rapid.SampledFrom([]string{"0", "1", "50%"}).Draw(t, "threshold")),
	}
	c.policy.Adopt = c.policy.Style == pb.Style_STYLE_BLUE_GREEN && rapid.Bool().Draw(t, "adopt")
	if rapid.Bool().Draw(t, "labels") {
		c.policy.RolloutID = "k"
		c.policy.Batches = []record.Quantity{quantity("25%"), quantity("50%"), quantity("100%")}
	}
	c.historyLimit = rapid.SampledFrom([]int{0, 2, 10}).Draw(t, "history")
	c.policy.GroupBudget = rapid.Bool().Draw(t, "budget")
	if rapid.Bool().Draw(t, "traffic") {
		c.traffic, c.policy.Traffic = &trafficModel{}, &traffic.Policy{}
	}
	if rapid.Bool().Draw(t, "autoscaler") {
		c.scaler = scaler{there: true, policy: "max", wish: "max", of: "vllm"}
	}
	c.stable = &set{
		name: "vllm", uid: "0", template: "A", groups: map[int]*group{},
		replicas: rapid.IntRange(0, 5).Draw(t, "replicas"), ruined: map[int]ruin{},
	}
	c.stable.rolling = c.drawRolling(rapid.SampledFrom([]int{0, 0, 2}).Draw(t, "partition"), "own")
	c.owed = c.stable.replicas
	c.wish, c.set, c.disturbed = c.stable.rolling, c.stable.rolling, true
	for range 8 {
		c.tick(time.Minute, 0)
	}
	return c
}

func quantity(s string) record.Quantity {
	q, err := record.ParseQuantity(s)
	if err != nil {
		panic(err)
	}
	return q
}

func (c *cluster) drawRolling(partition int, label string) rolling {
	for {
		r := rollingOf(partition, rapid.SampledFrom([]string{"0", "1", "2", "25%"}).Draw(c.t, label+" maxUnavailable"),
			rapid.SampledFrom([]string{"0", "1", "3", "50%"}).Draw(c.t, label+" maxSurge"))
		if acceptable(r, c.stable.replicas) {
			return r
		}
	}
}

func (c *cluster) note(format string, args ...any) {
	c.log = append(c.log, fmt.Sprintf("%s ", c.now.Format("15:04:05"))+fmt.Sprintf(format, args...))
}

func (c *cluster) fail(format string, args ...any) {
	for _, l := range c.log[max(0, len(c.log)-60):] {
		c.t.Log(l)
	}
	c.t.Fatalf(format, args...)
}

func (c *cluster) touch(s *set) { c.born++; s.version = c.born }

// tick lets time pass, and LWS and the kubelets work.
func (c *cluster) tick(d time.Duration, warmUp int) {
	c.now = c.now.Add(d)
	drift := !record.SameRolling(c.stable.rolling, c.set)
	c.stable.reconcile()
	taken := c.stable.run(c.now, warmUp, c.faults)
	if len(taken) > 0 {
		c.note("LWS took groups %v down to update them", taken)
		if c.record != nil && !drift && !c.rolls() && taken[len(taken)-1] < c.floor() {
			c.fail("ready stable groups %v were taken down in phase %q, and nobody but the driver set %v", taken, c.phase(), c.stable.rolling)
		}
	}
	c.mixed = c.mixed || drift || c.record == nil
	others := c.added
	if c.next != nil {
		others = append(slices.Clone(others), c.next.set)
	}
	for _, s := range others {
		s.reconcile()
		s.run(c.now, warmUp, c.faults)
	}
	c.added = slices.DeleteFunc(c.added, func(s *set) bool {
		return s.deleting && !s.held && (!s.foreground || len(s.groups) == 0)
	})
	if c.stable.whole() {
		c.disturbed = false
	}
	c.checkCapacity(drift)
}

// checkCapacity: what the driver does never takes more stable capacity than the user allowed, nor adds more than asked.
func (c *cluster) checkCapacity(drift bool) {
	s := c.stable
	allowed, surge := 0, 0
	switch {
	case c.record == nil || drift: // It is as somebody wrote it.
		allowed, surge = s.maxUnavailable(), s.maxSurge()
	case c.inPlace() || c.phase() == record.RollingBack:
		w := &set{replicas: s.replicas, rolling: c.wish}
		allowed = max(w.maxUnavailable(), 1)
		if c.phase() == record.RollingBack && c.stubborn() {
			allowed = max(allowed, s.maxUnavailable()) // LWS is led around a group that became ready a moment too late
		}
		if c.phase() == record.RollingBack && !c.inPlace() {
			surge = w.maxSurge()
		}
	case c.rolls() && c.stable.rolling.MaxUnavailable == all:
		allowed = s.replicas // checkIdle has seen that the second set does the work
	case c.rolls():
		w := &set{replicas: s.replicas, rolling: Pace(c.wish, s.replicas)}
		allowed, surge = w.maxUnavailable(), w.maxSurge()
	}
	if !c.disturbed && s.ready()+len(s.ruined) < s.replicas-allowed {
		c.fail("%d of %d stable groups are available, %v are ruined, %d may be unavailable", s.ready(), s.replicas, s.ruined, allowed)
	}
	if !c.disturbed && s.leaders.replicas > s.replicas+surge {
		c.fail("%d stable groups for %d replicas and a surge of %d", s.leaders.replicas, s.replicas, surge)
	}
	if len(c.added) > 1 {
		c.fail("%d canaries", len(c.added))
	}
}

// restartsExhausted says whether a group came back as it was however often it was restarted.
func (c *cluster) stubborn() bool {
	for _, r := range c.restarts {
		if r.n >= maxRestarts {
			return true
		}
	}
	return false
}

func (c *cluster) phase() record.Phase {
	if c.record == nil || c.record.Release == nil {
		return ""
	}
	return c.record.Release.Phase
}

// all is the pace of a workload that has nothing to do.
var all = intstr.FromString("100%")

func (c *cluster) inPlace() bool { return InPlace(c.policy.Style) }

// floor is the index from which on LWS may update groups in place.
func (c *cluster) floor() int {
	if !c.inPlace() || c.phase() != record.Progressing {
		return c.stable.replicas
	}
	return int(ptr.Deref(c.set.Partition, 0))
}

// rolls says whether LWS may roll the user's workload at the moment.
func (c *cluster) rolls() bool {
	return c.phase() == record.Promoting || c.phase() == record.RollingBack
}

func (c *cluster) observe() Observation {
	o := Observation{Now: c.now, Record: c.record, Policy: c.policy, Stable: c.observeSet(c.stable), Budgets: c.budget, Succeeded: c.next != nil}
	o.History, o.HistoryLimit, o.Stable.Recorded = c.history, c.historyLimit, c.recorded()
	for _, s := range c.added {
		o.Added = append(o.Added, c.observeSet(s))
	}
	if v := c.look(); v != nil {
		o.Traffic = *v
	}
	o.Autoscalers = c.observeScaler()
	return o
}

func (c *cluster) canary() *set {
	for _, s := range c.added {
		if c.record != nil && c.record.Release != nil && s.carries == c.record.Release.UpdateRevision {
			return s
		}
	}
	return nil
}

// decide is one look and one decision, with the checks that hold for each.
func (c *cluster) decide() Decision {
	o := c.observe()
	d := carryOn(o)
	if again := carryOn(o); !cmp.Equal(d, again, cmp.AllowUnexported(Progress{})) {
		c.fail("two decisions on one look:\n%s", cmp.Diff(d, again, cmp.AllowUnexported(Progress{})))
	}
	s := d.Progress
	switch {
	case d.State == 0 || d.Reason == "" || d.Message == "":
		c.fail("a decision without state, reason or message: %+v", d)
	case d.Reason == ReasonInvariantViolation:
		c.fail("%s", d.Message)
	case d.Recheck < 0, s.Planned < 0, s.Planned > o.Stable.Replicas && c.phase() != record.HandingOver, s.Threshold > s.Planned, s.UpdatedReady > s.Updated, s.Updated > s.Total:
		c.fail("counts make no sense: %+v", d)
	case d.Action == nil:
		c.checkQuiet(o, d)
	}
	c.checkRetire(d.Action)
	c.checkRoad(d.Action)
	c.checkIdle(d.Action)
	c.checkScaler(o, d.Action)
	c.checkLabel(d.Action)
	return d
}

// checkRetire: no canary capacity goes while batches of it run, nor before the stable groups are promoted.
func (c *cluster) checkRetire(a Action) {
	var name string
	switch a := a.(type) {
	case DeleteCanary:
		name = a.Name
	case RemoveFinalizer:
		name = a.Name
	default:
		return
	}
	i := slices.IndexFunc(c.added, func(s *set) bool { return s.name == name })
	if i < 0 || c.record == nil || c.stable.deleting {
		return
	}
	w := c.added[i]
	current := w.carries == c.stable.template && w.carries == c.record.Release.UpdateRevision && !w.deleting
	held := *c.stable.rolling.Partition == *record.Hold().Partition
	replaced := c.policy.Style == pb.Style_STYLE_BLUE_GREEN && !current && held
	stays := c.rolls() || c.phase() == record.Standby || c.phase() == record.HandingOver
	if stays && !replaced || c.phase() == record.Progressing && current {
		c.fail("%s of the canary that serves in phase %q", a, c.phase())
	}
}

// checkQuiet: where nothing is to be written, what was asked for is in force, and only Recheck changes the answer.
func (c *cluster) checkQuiet(o Observation, d Decision) {
	batch := c.inPlace() && c.phase() == record.Progressing && c.floor() >= o.Stable.Replicas-d.Progress.Planned
	if c.record != nil && !c.rolls() && !batch && !o.Stable.Deleting && !record.SameRolling(o.Stable.Rolling, record.Hold()) {
		c.fail("%s leaves %v in phase %q", d.Reason, o.Stable.Rolling, c.phase())
	}
	if w := c.canary(); w != nil && !c.stable.deleting && c.phase() == record.Progressing && w.carries == c.stable.revision() && !w.deleting {
		if !w.held {
			c.fail("%s leaves a canary whose groups nothing protects", d.Reason)
		}
		if w.replicas != d.Progress.Planned && !waitsForTraffic(d) {
			c.fail("%s leaves a canary of %d groups where %d are planned", d.Reason, w.replicas, d.Progress.Planned)
		}
		want, _ := c.asked.Planned(c.stable.replicas)
		if want < d.Progress.Planned || (want > d.Progress.Planned && !c.retired) {
			c.fail("the host asked for %d groups, %d are planned", want, d.Progress.Planned)
		}
	}
	if d.State == pb.State_STATE_READY && c.batchServes(d.Progress.Planned) < d.Progress.Planned-d.Progress.Threshold {
		c.fail("ready without its groups: %+v", d)
	}
	later := o
	later.Now = o.Now.Add(1000 * time.Hour)
	if d.Recheck > 0 {
		later.Now = o.Now.Add(d.Recheck - 1)
	}
	if then := carryOn(later); then.State != d.State || then.Reason != d.Reason || then.Action != nil {
		c.fail("at %s, recheck %s, but %s later it is %s, %s, action %v", d.Reason, d.Recheck, later.Now.Sub(o.Now), then.State, then.Reason, then.Action)
	}
}

// batchServes is how many groups of the batch serve the update revision.
func (c *cluster) batchServes(planned int) int {
	if !c.inPlace() {
		if w := c.canary(); w != nil {
			return c.servingAt(w, w.made)
		}
		return 0
	}
	above := &set{replicas: c.stable.replicas, groups: maps.Clone(c.stable.groups)}
	for i := range c.stable.replicas - planned {
		delete(above.groups, i)
	}
	return c.servingAt(above, c.record.Release.UpdateRevision)
}

// waitsForTraffic says whether the decision is to wait until requests go where they should.
func waitsForTraffic(d Decision) bool {
	return slices.Contains([]string{
		traffic.ReasonFenceNotInForce, traffic.ReasonRouteNotObserved, traffic.ReasonNoCanaryEndpoints, traffic.ReasonNoStableEndpoints, traffic.ReasonServiceNotOpen, ReasonDraining,
	}, d.Reason)
}

func (c *cluster) versions() map[string]int {
	v := map[string]int{c.stable.name: c.stable.version, "autoscaler": c.scaler.version, "fence": c.opened, "restarted": c.restarted}
	for _, s := range c.added {
		v[s.name] = s.version
	}
	for i, g := range c.stable.groups {
		v[leaderName(c.stable, i)] = g.version()
	}
	return v
}

// drive decides and applies until there is nothing to write.
func (c *cluster) drive() Decision {
	for range 60 {
		d := c.decide()
		if d.Action == nil {
			return d
		}
		c.apply(decided{d.Action, c.versions()})
		if next := c.decide(); cmp.Equal(next.Action, d.Action) {
			c.fail("%q was applied and is wanted again", d.Action)
		}
	}
	c.fail("60 writes and no end: %+v", c.decide())
	return Decision{}
}

func one() intstr.IntOrString { return intstr.FromInt32(1) }
