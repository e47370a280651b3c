// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"iter"
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/simulate/native"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic/probe"
)

// The small world is what the explorer visits every state of: a workload of two or three groups of one pod, its release, and all who
// act on them. Time is abstract: of every time it is known only whether it is now, a while ago or long ago.

// age is how long ago something was.
type age uint8

const (
	unset  age = iota
	fresh      // now: no timer has expired since
	recent     // longer ago than minReady, lossGrace and the scale-down delay; no deadline has passed
	old        // longer ago than any deadline
)

var ages = [...]time.Duration{fresh: 0, recent: 10 * time.Minute, old: 25 * time.Hour}

// at returns the time of an age.
func (a age) at() time.Time {
	if a == unset {
		return time.Time{}
	}
	return noon.Add(-ages[a])
}

// ageOf returns the age of a time that the planner took from the observation. Nanoseconds only order times.
func ageOf(t time.Time) age {
	switch d := noon.Sub(t); {
	case t.IsZero():
		return unset
	case d < ages[recent]:
		return fresh
	case d < ages[old]:
		return recent
	}
	return old
}

// revision is a template and its revision, which is the letter of its number: 1 is A. 0: none.
type revision uint8

const revisions = 3

func (r revision) String() string { return [...]string{"", "A", "B", "C"}[r] }

func revisionOf(s string) revision { return revision(strings.Index(" ABC", s+"")) }

// indices is how many groups a set may have: the replicas, one more by a scale-up, and a surge.
const maxIndices = 6

// leaders is the leader StatefulSet of a set.
type leaderSet struct {
	exists                                  bool
	replicas, partition, unavailable, noted uint8
	update, current                         revision
}

// member is a group.
type member struct {
	revision revision // 0: it does not exist
	ready    bool
	serving  bool // its leader has the serving label
	hurt     bool // the environment took it
	busy     bool // it received requests that it has not finished
	cutOff   bool // its drain has timed out, although it still receives requests
	since    age  // it is ready
	first    age  // it was ready for minReady at this revision
	lost     age
	ran      revision // it was last ready at
	broken   revision // the revision at which it does not become ready
	fault    fault
	warm     bool // its leader has answered the warm-up request
	// restarts counts the driver's restarts of the group at the revision restarted.
	restarts  uint8
	restarted revision
}

// fault is why a group is not ready, besides its revision.
type fault uint8

const (
	sound         fault = iota
	workerUnready       // its leader is ready, and may get requests
	evicted             // its pods are being deleted, and still have the condition Ready
	nodeLost            // its pods stay until the node is back
	terminating         // so they do, and Kubernetes deletes them
)

// lws is a LeaderWorkerSet.
type lwset struct {
	exists, deleting, foreground, finalizer bool
	template, made, carries                 revision // made: as it was created
	replicas                                uint8
	rolling                                 uint8 // of rollings
	observed                                bool  // LWS has acted on the spec
	byHand                                  bool  // another client than the driver scaled it last
	auto                                    bool  // that client is an autoscaler
	restored                                bool  // the driver wrote the template last
	target                                  uint8 // of targets
	targetAt, deletingAt                    age
	leaders                                 leaderSet
	groups                                  [maxIndices]member
}

// state is one state of the small world. It is comparable.
type state struct {
	own, added                  lwset
	record                      uint16               // of records
	phaseAt, targetAt           age                  // of the record
	newer                       bool                 // the record's target is newer than that of the added set
	objects                     uint8                // of worlds: what the API server has
	selectors, route            uint8                // of those that the endpoints follow, and that the gateway serves
	waiting                     uint8                // of waits
	waitingSince, waitingBefore age                  // before: that of an earlier driver
	recorded                    age                  // since when it waits, by the record
	asked                       [revisions + 1]uint8 // percentage of the own groups that may run a revision
	lwsDown, gatewayDown, blind bool
	pickerDown                  bool // the canary's endpoint picker
	silent                      bool // leaders answer no warm-up request, and do not finish their requests
	succeeded, over             bool // the added set is a workload of its own; the user's object is deleted
	held, noted                 autoscaler.Hold
	passed                      bool   // the autoscaler scales the added set
	late                        uint16 // of writes: one that is decided and not made
	restarting                  bool   // a group that the driver restarted does not exist again
	edited                      bool
	wanted                      uint8 // groups, by the user
	pace                        uint8 // of rollings: the user's own configuration
	before                      uint8 // of rollings: the one that LWS may still follow, once the user has changed it
	kept                        bool  // the driver remembers the traffic policy of a release in place, whose record was removed
	unnamed                     bool  // the record was removed, and nothing else names the routes
	refuses                     uint8 // a kind of writes that the API server refuses
	refused                     bool  // so it did with the last write
	grown                       uint8 // groups that a user has added, or given up by force, until all are ready
	full                        bool  // the groups of other releases are as many as may be in flight
	unscanned                   bool  // the caches of autoscalers are not filled
	spent                       uint8 // disturbances
}

// world is the constant part of a small world, and what states refer to by number.
type world struct {
	config

	policy   *pb.ReleasePolicy
	strict   *pb.ReleasePolicy // it tolerates no group
	user     rolling
	rollings table[string, rolling]
	targets  table[string, *record.Target]
	records  table[string, datelessRecord]
	waits    table[string, string]
	writes   table[string, Action]
	network

	// What next is to return: steps of some kinds, or only what happens next while nothing disturbs, without the rules of stale caches.
	only        func(do string) bool
	once, hasty bool

	dated map[dated]*record.Record
	// of observations, which are used one at a time
	groups [2][maxIndices]Group
	states [maxIndices]native.ReplicaState
}

// config is what a small world begins with.
type config struct {
	style       pb.Style
	replicas    int
	unavailable string // of the user
	surge       string
	routed      bool // the policy has traffic
	minReady    bool
	delay       bool // the policy has a scale-down delay
	adopt       bool // blue-green: the second set becomes the workload
	scaler      bool // an autoscaler scales the workload
	parallel    bool // MaxUnavailableStatefulSet
	admission   bool // the admission policy is installed
	headers     bool // the host asks for a header route
	disown      bool // the user disowns and adopts the workload
	threshold   bool // the policy tolerates a group that is not ready, in some of the releases
	warmUp      bool // the policy has a warm-up
	nodes       bool // nodes are lost, and workers fail alone
	limited     bool // groups in flight are limited, and the caches of autoscalers fill late
	resizes     bool // template C has groups of another size
	pool        bool // the routes lead to a pool
	two         bool // there are two routes
}

func (c config) String() string {
	words := []string{fmt.Sprintf("style=%s replicas=%d own=%s/%s", strings.TrimPrefix(c.style.String(), "STYLE_"), c.replicas, c.unavailable, c.surge)}
	for word, is := range c.words() {
		if *is {
			words = append(words, word)
		}
	}
	return strings.Join(words, " ")
}

// words yields the name of each property.
func (c *config) words() iter.Seq2[string, *bool] {
	return func(yield func(string, *bool) bool) {
		for i, is := range []*bool{&c.routed, &c.minReady, &c.delay, &c.adopt, &c.scaler, &c.parallel, &c.admission, &c.headers, &c.disown, &c.threshold, &c.warmUp, &c.nodes, &c.limited, &c.resizes, &c.pool, &c.two} {
			if !yield([...]string{"routed", "min-ready", "delay", "adopt", "scaler", "parallel", "admission", "headers", "disown", "threshold", "warm-up", "nodes", "limited", "resizes", "pool", "two-routes"}[i], is) {
				return
			}
		}
	}
}

// table numbers values by their keys, from 1.
type table[K comparable, V any] struct {
	ids    map[K]int
	values []V
}

func (t *table[K, V]) put(k K, v V) int {
	id, known := t.ids[k]
	if !known {
		if t.ids == nil {
			t.ids, t.values = map[K]int{}, make([]V, 1)
		}
		id = len(t.values)
		t.ids[k], t.values = id, append(t.values, v)
	}
	return id
}

// datelessRecord is a record without its times, and the policy in it.
type datelessRecord struct {
	record *record.Record
	policy record.Policy
}

// dated is a record with its times.
type dated struct {
	record            uint16
	phaseAt, targetAt age
	recorded          age
	newer             bool
}

func newWorld(c config) (*world, state) {
	w := &world{config: c, user: parsePace(c.unavailable + "/" + c.surge), dated: map[dated]*record.Record{}}
	w.policy = &pb.ReleasePolicy{Style: c.style, Batches: []string{"50%", "100%"}, ProgressDeadline: durationpb.New(time.Hour)}
	if c.routed {
		w.policy.Traffic = &pb.TrafficPolicy{StableService: routed.StableService, HttpRoutes: []string{routed.Routes[0].Name}}
	}
	if c.minReady {
		w.policy.MinReady = durationpb.New(time.Minute)
	}
	if c.style == pb.Style_STYLE_BLUE_GREEN {
		w.policy.BlueGreen = &pb.BlueGreenPolicy{}
		if c.delay {
			w.policy.BlueGreen.ScaleDownDelay = durationpb.New(time.Minute)
		}
		if c.adopt {
			w.policy.BlueGreen.Promotion = pb.BluePromotion_BLUE_PROMOTION_ADOPT
		}
	}
	if w.strict = w.policy; c.threshold {
		w.policy = proto.CloneOf(w.strict)
		w.policy.FailureThreshold = "1"
	}
	s := state{own: lwset{exists: true, template: 1, made: 1, replicas: uint8(c.replicas), observed: true}}
	s.own.rolling, s.wanted, s.pace = w.rolling(record.Hold()), s.own.replicas, w.rolling(w.user)
	s.own.leaders = leaderSet{exists: true, replicas: s.own.replicas, noted: s.own.replicas, partition: holdPartition, unavailable: 1, update: 1, current: 1}
	for i := range c.replicas {
		s.own.groups[i] = member{revision: 1, ran: 1, ready: true, since: old, first: old}
	}
	w.setRecord(&s, record.Record{Version: 1, Saved: w.user})
	s.asked[1] = 100
	w.newNetwork(&s)
	return w, s
}

// holdPartition is the partition of the hold, which is above any number of groups.
const holdPartition = 255

func (w *world) rolling(r rolling) uint8 {
	key := fmt.Sprintf("%d %s %s", ptr.Deref(r.Partition, 0), r.MaxUnavailable.String(), r.MaxSurge.String())
	return uint8(w.rollings.put(key, r))
}

func (w *world) rollingOf(s *lwset) rolling { return w.rollings.values[s.rolling] }

// target numbers a target, and returns its age.
func (w *world) target(t *record.Target) (uint8, age) {
	if t == nil {
		return 0, unset
	}
	undated := *t
	undated.At = time.Time{}
	key := must(undated.Encode())
	return uint8(w.targets.put(key, &undated)), ageOf(t.At)
}

// setRecord has the state's record be r.
func (w *world) setRecord(s *state, r record.Record) {
	s.phaseAt, s.targetAt, s.recorded, s.newer = unset, unset, unset, false
	if r.Release != nil {
		n := *r.Release
		s.phaseAt, n.PhaseAt, n.StartedAt = ageOf(n.PhaseAt), time.Time{}, time.Time{}
		s.recorded, n.Waiting.Since = ageOf(n.Waiting.Since), time.Time{}
		if n.Target != nil {
			t := *n.Target
			s.newer = s.added.target != 0 && t.At.After(s.added.targetAt.at())
			s.targetAt, t.At = ageOf(t.At), time.Time{}
			n.Target = &t
		}
		r.Release = &n
	}
	key := must(r.Encode())
	id, known := w.records.ids[key]
	if !known {
		var policy record.Policy
		if r.Release != nil {
			policy, _ = record.ParsePolicy(must(r.Release.PolicyMessage()))
		}
		if policy.Traffic != nil {
			policy.Traffic = w.trafficPolicy()
		}
		id = w.records.put(key, datelessRecord{&r, policy})
	}
	s.record = uint16(id)
}

// recordOf returns the record, nil without one.
func (w *world) recordOf(s *state) *record.Record {
	if s.record == 0 {
		return nil
	}
	k := dated{s.record, s.phaseAt, s.targetAt, s.recorded, s.newer}
	if r, ok := w.dated[k]; ok {
		return r
	}
	r := *w.records.values[s.record].record
	if r.Release != nil {
		n := *r.Release
		n.StartedAt, n.PhaseAt = noon.Add(-48*time.Hour), s.phaseAt.at()
		n.Waiting.Since = s.recorded.at()
		if n.Target != nil {
			t := *n.Target
			if t.At = s.targetAt.at(); s.newer {
				t.At = t.At.Add(1)
			}
			n.Target = &t
		}
		r.Release = &n
	}
	w.dated[k] = &r
	return &r
}

// release returns the release without times, nil without one.
func (w *world) release(s *state) *record.Release {
	if s.record == 0 {
		return nil
	}
	return w.records.values[s.record].record.Release
}

func (w *world) phase(s *state) record.Phase {
	if r := w.release(s); r != nil {
		return r.Phase
	}
	return ""
}

// addedName is the name of the added set.
func addedName(carries revision) string { return record.CanaryName("vllm", "vllm", carries.String()) }

var warmed = Answer{Done: true}

var leaderNames = map[string][]string{}

func init() {
	for _, name := range []string{"vllm", addedName(1), addedName(2), addedName(3)} {
		for i := range maxIndices {
			leaderNames[name] = append(leaderNames[name], fmt.Sprintf("%s-%d", name, i))
		}
	}
}

// observe returns what the observer does. The observation is valid until the next one.
func (w *world) observe(s *state) Observation {
	o := Observation{Key: scenarioKey, Now: noon, Record: w.recordOf(s), Stable: w.observeSet(&s.own, "vllm", 0)}
	if o.Record != nil {
		o.Policy = w.records.values[s.record].policy
	}
	if o.Policy.ProgressDeadline == 0 {
		o.Policy.ProgressDeadline = record.DefaultProgressDeadline
	}
	if s.waiting != 0 {
		o.Waiting = Waiting{For: w.waits.values[s.waiting], Since: s.waitingSince.at(), Recorded: s.waitingBefore.at()}
	}
	o.Stable.Recorded = w.recordedRevisions(s)
	if o.Stable.Autoscaled = s.own.auto; s.own.replicas != s.wanted {
		o.Stable.ScaledBy = record.FieldManager
	}
	if o.Succeeded = s.succeeded; s.added.exists && !s.succeeded {
		o.Added = []Workload{w.observeSet(&s.added, addedName(s.added.carries), 1)}
	}
	if w.scaler {
		o.Autoscalers = []Autoscaler{{
			Kind: "HorizontalPodAutoscaler", Name: "vllm", Targets: !s.passed, Passed: s.passed, Held: s.noted, Max: w.replicas + 1,
			Directions: autoscaler.Directions{Up: s.held != autoscaler.HoldAll, Down: s.held == autoscaler.HoldNone},
		}}
	}
	if s.unscanned {
		o.Autoscalers, o.Unscanned = nil, &drivererr.Problem{Reason: pb.ErrorReason_ERROR_REASON_NOT_SYNCED, Message: "their caches are not filled yet"}
	}
	if w.limited {
		if o.MaxInFlight = ptr.To(math.MaxInt); s.full {
			o.MaxInFlight = ptr.To(0)
		}
	}
	w.compareSizes(&o, s)
	if s.refused {
		o.Refused = &drivererr.Problem{Reason: pb.ErrorReason_ERROR_REASON_REJECTED, Message: "a webhook refuses it"}
	}
	if s.kept {
		o.Policy.Style = w.style
	}
	if w.routed && (o.release() != nil || s.added.exists || s.kept) {
		o.Traffic = w.observeTraffic(s)
		o.Policy.Traffic, o.Policy.Drain = w.trafficPolicy(), probe.Drain{Period: time.Minute}
		if w.warmUp {
			o.Policy.WarmUp = probe.WarmUp{Timeout: time.Minute}
		}
	}
	if w.warmUp || s.added.deleting {
		o = Judge(o)
	}
	if draining := o.drainingGroups(); len(draining) > 0 { // the engine asks them at once
		o.Drain = &Drain{leadersOf(draining), Answer{Done: true, Message: "requests are running"}}
		for _, g := range draining {
			if s.leader(g.Leader).busy {
				o.Drain.Done, o.Drain.Recheck = false, time.Minute
			}
		}
	}
	return o
}

// compareSizes has an observation tell of groups that the hold does not cover, since the size in the spec is not theirs.
func (w *world) compareSizes(o *Observation, s *state) {
	if !w.resizes {
		return
	}
	sizeOf := func(revision string) (t record.Template) {
		t.LeaderWorkerTemplate.Size = ptr.To[int32](1)
		if revision == "C" {
			t.LeaderWorkerTemplate.Size = ptr.To[int32](2)
		}
		return t
	}
	if from := WaitingRevision(o.Stable, o.release()); from != "" {
		o.UnsafeChanges = CompareTemplates(sizeOf(from), sizeOf(s.own.template.String()))
	}
}

// recordedRevisions are those of which LWS has the templates.
func (w *world) recordedRevisions(s *state) []string {
	var has [revisions + 1]bool
	has[s.own.leaders.update], has[s.own.leaders.current] = true, true
	for i := range s.own.groups {
		has[s.own.groups[i].revision] = true
	}
	var out []string
	for r := revision(1); r <= revisions; r++ {
		if has[r] {
			out = append(out, r.String())
		}
	}
	return out
}

func (w *world) observeSet(s *lwset, name string, at int) Workload {
	out := Workload{
		Name: name, Replicas: int(s.replicas), Size: 1, Rolling: w.rollingOf(s), Deleting: s.deleting, DeletingSince: s.deletingAt.at(),
		Observed: s.observed, HasFinalizer: s.finalizer, Lingers: s.deleting && !s.foreground,
	}
	if s.leaders.exists && s.leaders.update == s.template {
		out.Revision = s.template.String()
	}
	if s.restored {
		out.ChangedBy = record.FieldManager
	}
	if out.ScaledBy = "kubectl"; at == 1 {
		out.Carries, out.Drifted = s.carries.String(), s.template != s.made
		if !s.byHand {
			out.ScaledBy = record.FieldManager
		}
		if s.target != 0 {
			t := *w.targets.values[s.target]
			t.At = s.targetAt.at()
			out.Target = &t
		}
	}
	groups := w.groups[at][:0]
	for i := range s.groups {
		m := &s.groups[i]
		if m.revision == 0 && (m.lost == unset || i >= int(s.replicas)) {
			continue
		}
		g := Group{
			Index: i, Leader: leaderNames[name][i], Revision: m.revision.String(), Pods: 1, FirstReady: m.first.at(), LostAt: m.lost.at(),
			Serving: m.serving, Restarts: int(m.restarts), Terminating: m.fault == terminating || m.fault == evicted, TerminatingReady: m.fault == evicted,
		}
		if m.warm {
			g.WarmUp = &warmed
		}
		switch {
		case m.ready:
			g.Ready, g.ReadySince, g.ReadyPods = true, m.since.at(), 1
		case m.revision == 0:
			g.Pod, g.Reason, g.Message = g.Leader, ReasonPodMissing, "has not been created yet"
		case g.Terminating:
			g.Pod, g.Reason, g.Message = g.Leader, reasonTerminating, "is being deleted on node n"
		case m.broken == m.revision:
			g.Pod, g.Reason, g.Message = g.Leader, "CrashLoopBackOff", "container server: CrashLoopBackOff"
		default:
			g.Pod, g.Reason, g.Message = g.Leader, "Starting", "is starting"
		}
		if m.fault == workerUnready {
			g.Pods, g.ReadyPods = 2, 1
		}
		groups = append(groups, g)
	}
	out.Groups = groups
	return out
}
