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

// cluster is a model of an API server, LWS, a driver, a host and a user. It records what user and host requested.
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
	waiting      Waiting // what the last decision waited for
	created      int     // objects created so far
	room         *int    // what releases of other workloads leave of the server's limit

	scaler scaler

	// Of a handover.
	next              *successor
	transferred       []Entry
	handovers         int // how many completed
	requestedReplicas int // the user's latest; -1: lost with an object that was about to be deleted

	admission bool // the admission policy is installed
	faults    bool // groups may fail

	turns turns // of the share, since nothing breaks any more

	// pending is a decision from an older observation, not applied yet.
	pending *decided

	// What was requested, and what happened to it.
	userRolling     rolling        // the user's latest configuration
	set             rolling        // what the driver last set on stable
	requestedTarget *record.Target // the host's latest, for the record's update revision
	retired         bool           // since then the canary was deleted for another template, so the host must request a batch again
	disturbed       bool           // another client took stable capacity, which is not restored yet
	mixed           bool           // another client had LWS roll since the release began
	restarts        map[int]restarts
	restarted       int    // how many groups drivers restarted
	unfenced        int    // how often the user removed the fence
	template        string // what the record has saved of the stable template
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
		c.scaler = scaler{exists: true, policy: "max", of: "vllm", toZero: rapid.Bool().Draw(t, "to zero"), most: rapid.IntRange(1, 6).Draw(t, "most")}
	}
	c.stable = &set{
		name: "vllm", uid: "0", template: "A", groups: map[int]*group{},
		replicas: rapid.IntRange(0, 5).Draw(t, "replicas"), failing: map[int]failure{},
	}
	c.stable.rolling = c.drawRolling(rapid.SampledFrom([]int{0, 0, 2}).Draw(t, "partition"), "own")
	c.requestedReplicas = c.stable.replicas
	c.userRolling, c.set, c.disturbed = c.stable.rolling, c.stable.rolling, true
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

func (c *cluster) touch(s *set) { c.created++; s.version = c.created }

// tick lets time pass, and LWS and the kubelets work.
func (c *cluster) tick(d time.Duration, warmUp int) {
	c.now = c.now.Add(d)
	drift := !record.SameRolling(c.stable.rolling, c.set)
	c.stable.reconcile()
	deleted := c.stable.run(c.now, warmUp, c.faults)
	if len(deleted) > 0 {
		c.note("LWS took groups %v down to update them", deleted)
		if c.record != nil && !drift && !c.rolls() && deleted[len(deleted)-1] < c.floor() {
			c.fail("ready stable groups %v were deleted down in phase %q, and only the driver set %v", deleted, c.phase(), c.stable.rolling)
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
	if c.stable.allReady() {
		c.disturbed = false
	}
	c.checkCapacity(drift)
}

// checkCapacity: the driver never takes more stable capacity than the user allowed, nor adds more than requested.
func (c *cluster) checkCapacity(drift bool) {
	s := c.stable
	allowed, surge := 0, 0
	switch {
	case c.record == nil || drift: // Another client wrote it.
		allowed, surge = s.maxUnavailable(), s.maxSurge()
	case c.inPlace() || c.phase() == record.RollingBack:
		w := &set{replicas: s.replicas, rolling: c.userRolling}
		allowed = max(w.maxUnavailable(), 1)
		if c.phase() == record.RollingBack && c.restartsExhausted() {
			allowed = max(allowed, s.maxUnavailable()) // LWS skips a group that became ready a moment too late
		}
		if c.phase() == record.RollingBack && !c.inPlace() {
			surge = w.maxSurge()
		}
	case c.rolls() && c.stable.rolling.MaxUnavailable == all:
		allowed = s.replicas // checkReplaceAll has checked that the second set serves
	case c.rolls():
		w := &set{replicas: s.replicas, rolling: Pace(c.userRolling, s.replicas)}
		allowed, surge = w.maxUnavailable(), w.maxSurge()
	}
	if !c.disturbed && s.ready()+len(s.failing) < s.replicas-allowed {
		c.fail("%d of %d stable groups are available, %v are failing, %d may be unavailable", s.ready(), s.replicas, s.failing, allowed)
	}
	if !c.disturbed && s.leaders.replicas > s.replicas+surge {
		c.fail("%d stable groups for %d replicas and a surge of %d", s.leaders.replicas, s.replicas, surge)
	}
	if len(c.added) > 1 {
		c.fail("%d canaries", len(c.added))
	}
}

// restartsExhausted reports whether restarts have not changed a group's revision.
func (c *cluster) restartsExhausted() bool {
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

// all is the pace of a workload that receives no requests.
var all = intstr.FromString("100%")

func (c *cluster) inPlace() bool { return InPlace(c.policy.Style) }

// floor returns the index from which on LWS may update groups in place.
func (c *cluster) floor() int {
	if !c.inPlace() || c.phase() != record.Progressing {
		return c.stable.replicas
	}
	return int(ptr.Deref(c.set.Partition, 0))
}

// rolls reports whether LWS may roll the user's workload at the moment.
func (c *cluster) rolls() bool {
	return c.phase() == record.Promoting || c.phase() == record.RollingBack
}

func (c *cluster) observe() Observation {
	o := Observation{Now: c.now, Waiting: c.waiting, Record: c.record, Policy: c.policy, Stable: c.observeSet(c.stable), Budgets: c.budget, Succeeded: c.next != nil, Room: c.room}
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

// decide observes and decides, and checks what holds for each decision.
func (c *cluster) decide() Decision {
	o := c.observe()
	d := carryOn(o)
	c.checkMissing(o, nil, d)
	c.waiting = d.Waiting
	if again := carryOn(o); !cmp.Equal(d, again, cmp.AllowUnexported(Progress{})) {
		c.fail("two decisions from one observation:\n%s", cmp.Diff(d, again, cmp.AllowUnexported(Progress{})))
	}
	s := d.Progress
	switch {
	case d.State == 0 || d.Reason == "" || d.Message == "":
		c.fail("a decision without state, reason or message: %+v", d)
	case d.Reason == ReasonInvariantViolation:
		c.fail("%s", d.Message)
	case d.Recheck < 0, s.Planned < 0, s.Planned > max(o.batchReplicas(), o.capacity()) && c.phase() != record.HandingOver, s.Threshold > s.Planned, s.UpdatedReady > s.Updated, s.Updated > s.Total:
		c.fail("counts make no sense: %+v", d)
	case d.Action == nil:
		c.checkQuiet(o, d)
	}
	if d.Starts > 0 && c.room != nil && d.InFlight+d.Starts > *c.room {
		c.fail("%d groups are started beside %d, with room for %d: %s", d.Starts, d.InFlight, *c.room, d.Action)
	}
	c.checkRetire(d.Action)
	c.checkTraffic(d.Action)
	c.checkReplaceAll(d.Action)
	c.checkScaler(o, d.Action)
	c.checkLabel(d.Action)
	return d
}

// checkRetire: no canary group is deleted while batches run, nor before the stable groups are promoted.
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

// checkQuiet: if nothing is to be written, what was requested is in force, and only Recheck changes the decision.
func (c *cluster) checkQuiet(o Observation, d Decision) {
	c.checkShareQuiet(d)
	batch := c.inPlace() && c.phase() == record.Progressing && c.floor() >= o.Stable.Replicas-d.Progress.Planned
	if c.record != nil && !c.rolls() && !batch && !o.Stable.Deleting && !record.SameRolling(o.Stable.Rolling, record.Hold()) {
		c.fail("%s leaves %v in phase %q", d.Reason, o.Stable.Rolling, c.phase())
	}
	if w := c.canary(); w != nil && !c.stable.deleting && c.phase() == record.Progressing && w.carries == c.stable.revision() && !w.deleting {
		if !w.held {
			c.fail("%s leaves a canary without a finalizer", d.Reason)
		}
		if w.replicas != d.Progress.Planned && !waitsForTraffic(d) && d.Reason != ReasonWaitingForTurn && !slices.Contains(waitForUser, d.Reason) {
			c.fail("%s leaves a canary of %d groups where %d are planned", d.Reason, w.replicas, d.Progress.Planned)
		}
		want, _ := c.requestedTarget.Planned(o.batchReplicas())
		if want < d.Progress.Planned && !c.stable.autoscaled || (want > d.Progress.Planned && !c.retired) {
			c.fail("the host requested %d groups, %d are planned", want, d.Progress.Planned)
		}
	}
	c.checkWait(o, d)
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

// batchServes returns how many groups of the batch serve the update revision.
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

// waitsForTraffic reports whether the decision is to wait for the routing.
func waitsForTraffic(d Decision) bool {
	return slices.Contains([]string{
		traffic.ReasonFenceNotInForce, traffic.ReasonRouteNotObserved, traffic.ReasonNoCanaryEndpoints, traffic.ReasonNoStableEndpoints, traffic.ReasonEndpointsNotFollowing, ReasonDraining,
	}, d.Reason)
}

func (c *cluster) versions() map[string]int {
	v := map[string]int{c.stable.name: c.stable.version, "autoscaler": c.scaler.version, "fence": c.unfenced, "restarted": c.restarted}
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
