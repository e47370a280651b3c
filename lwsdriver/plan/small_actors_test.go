// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"

	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/simulate/native"
	"github.com/lockstep-rollouts/lockstep/traffic"
	"github.com/lockstep-rollouts/lockstep/traffic/model"
)

// act is what one actor does in one step.
type act struct {
	do       string // the name in a course
	set      uint8  // 0: the user's own, 1: the added one
	index    uint8
	revision revision
	number   int
}

func (a act) String() string {
	s := a.do
	switch a.do {
	case actReady, actLose, actKill, actBreak, actRepair, actLoseWorker, actLoseNode, actWarmUp, actEvict, actStop:
		s += fmt.Sprintf(" %s-%d", [...]string{"own", "added"}[a.set], a.index)
	case actReconcile, actRun:
		s += " " + [...]string{"own", "added"}[a.set]
	case actEdit, actUndo:
		s += " " + a.revision.String()
	case actLabel:
		s += fmt.Sprintf(" %s-%d", [...]string{"own", "added"}[a.set], a.index)
	case actPace:
		s += " " + paces[a.number]
	case actRefuse:
		s += " " + refusals[a.number]
	case actBatch, actWeight, actScale, actScaleAdded, actAutoscale, actApply:
		s += fmt.Sprintf(" %d", a.number)
	}
	return s
}

// Acts. The first ones happen by themselves, in this order while nothing disturbs; the next ones are those of the host; the last ones
// are disturbances.
const (
	actDrive       = "driver"
	actReconcile   = "lws"
	actRun         = "statefulset"
	actEndpoints   = "endpoints"
	actGateway     = "gateway"
	actDrain       = "drain"
	actReady       = "ready"
	actCaches      = "caches"
	actWait        = "wait"
	actWaitLong    = "wait long"
	actBegin       = "begin"
	actBatch       = "batch"
	actWeight      = "weight"
	actPromote     = "promote"
	actRollBack    = "roll back"
	actForce       = "roll back with force"
	actEdit        = "edit"
	actScale       = "scale"
	actAutoscale   = "autoscale"
	actApply       = "apply"
	actRescale     = "restore autoscaler"
	actRestoreSet  = "restore canary"
	actDecide      = "decide"
	actLate        = "late write"
	actScaleAdded  = "scale added"
	actEditAdded   = "edit added"
	actDeleteAdded = "delete added"
	actLose        = "lose"
	actKill        = "kill"
	actBreak       = "break"
	actRepair      = "repair"
	actRevert      = "revert route"
	actEndSplit    = "end split"
	actUnhold      = "unhold"
	actLWSDown     = "lws down"
	actLWSUp       = "lws up"
	actGatewayDown = "gateway down"
	actGatewayUp   = "gateway up"
	actPickerDown  = "picker down"
	actPickerUp    = "picker up"
	actRestart     = "restart driver"
	actHeaders     = "header route"
	actNoHeaders   = "no header route"
	actDisown      = "disown"
	actAdopt       = "adopt"
	actPace        = "pace"
	actForget      = "delete record"
	actOldObject   = "restore old object"
	actLabel       = "toggle serving label"
	actUnserve     = "delete canary service"
	actRefuse      = "refuse"
	actAccept      = "accept"
	actLoseWorker  = "lose worker"
	actLoseNode    = "lose node"
	actEvict       = "evict"
	actStop        = "stop"
	actWarmUp      = "warm up"
	actSilence     = "leaders fall silent"
	actAnswer      = "leaders answer"
	actMirror      = "mirror"
	actStrict      = "begin strictly"
	actUndo        = "undo"
	actFull        = "others start"
	actAdmit       = "others are ready"
	actUnscan      = "autoscalers unknown"
	actScan        = "autoscalers known"
)

// releaseIDs are those of the releases, in turn.
var releaseIDs = [...]string{"r", "q"}

// paces are maxUnavailable and maxSurge as a user edits them.
var paces = [...]string{"0/1", "1/0", "2/0", "50%/0", "0/50%"}

// refusals are kinds of writes, by what they write.
var refusals = [...]string{"nothing", "the workload", "the added one", "routing", "pods", refusalOne}

// refusalOne is of the first of two routes.
const refusalOne = "one route"

// refusesWrite reports whether the API server refuses a write that was decided from an observation.
func (w *world) refusesWrite(s *state, o Observation, a Action) bool {
	if refusals[s.refuses] != refusalOne {
		return refusalOf(a) == s.refuses
	}
	set, routes := a.(SetTraffic)
	if !routes {
		return false
	}
	write := o.Traffic.Look(set.Desired).Write
	return write != nil && write.Key == twoRoutes.Routes[0]
}

func refusalOf(a Action) uint8 {
	switch a.(type) {
	case SetStable, DeleteStable, HoldAutoscaler, ReleaseAutoscaler, RemoveRecord, RestoreTemplate:
		return 1
	case CreateCanary, ScaleCanary, RepairCanary, DeleteCanary, RemoveFinalizer, HandOver:
		return 2
	case SetTraffic:
		return 3
	case RestartGroup, LabelServing:
		return 4
	}
	return 0
}

// drive is one step of the driver.
func (w *world) drive(s *state) (Decision, error) {
	o := w.observe(s)
	d := reconcile(o)
	if s.waiting, s.waitingSince, s.waitingBefore = 0, unset, unset; d.Waiting.For != "" {
		s.waiting = uint8(w.waits.put(d.Waiting.For, d.Waiting.For))
		s.waitingSince, s.waitingBefore = ageOf(d.Waiting.Since), ageOf(d.Waiting.Recorded)
	}
	switch refused := d.Action != nil && w.refusesWrite(s, o, d.Action); {
	case refused:
		s.refused = true
		return d, nil
	case d.Action == nil && s.refused:
		return d, nil
	case refusalOf(d.Action) == refusalOf(SetTraffic{}): // the write follows from the last refusal
		err := w.apply(s, d.Action)
		s.refused = false
		return d, err
	}
	s.refused = false
	return d, w.apply(s, d.Action)
}

// apply makes a write of the driver.
func (w *world) apply(s *state, action Action) error {
	switch a := action.(type) {
	case nil:
	case SetStable:
		return w.setStable(s, a)
	case CreateCanary:
		if s.refused = s.succeeded; s.refused {
			break // the handover was written while an old object was restored: the API server says that the name is taken
		}
		if s.added.exists && (!s.added.leftover() || a.Name == addedName(s.added.carries)) {
			return fmt.Errorf("%s: it exists", a)
		}
		s.added = lwset{exists: true, finalizer: true, template: s.own.template, made: s.own.template, carries: revisionOf(a.Revision), replicas: uint8(a.Replicas)}
		s.added.rolling = w.rolling(record.Native(record.Hold()))
		s.added.target, s.added.targetAt = w.target(a.Target)
		s.newer = false
	case ScaleCanary:
		spec := s.added.replicas != uint8(a.Replicas)
		s.added.replicas, s.added.byHand = uint8(a.Replicas), s.added.byHand && !spec
		s.added.observed = s.added.observed && !spec
		if a.Target != nil {
			s.newer = false
			s.added.target, s.added.targetAt = w.target(a.Target)
		}
	case RepairCanary:
		s.added.template, s.added.observed = s.added.made, false
	case DeleteCanary:
		s.added.deleting, s.added.foreground = true, true
		if s.added.deletingAt == unset {
			s.added.deletingAt = fresh
		}
	case RemoveFinalizer:
		s.added.finalizer = false
	case RestartGroup:
		i := slices.Index(leaderNames["vllm"], a.Leader)
		m := &s.own.groups[i]
		at := m.revision
		if s.restarting = true; m.fault < nodeLost {
			*m = member{lost: fresh, ran: m.ran, broken: m.broken, hurt: m.hurt, restarts: m.restarts, restarted: m.restarted}
		} else {
			m.fault = terminating
		}
		if m.restarted != at {
			m.restarts, m.restarted = 0, at
		}
		m.restarts = min(m.restarts+1, maxRestarts)
	case SetTraffic:
		return w.write(s, a.Desired)
	case LabelServing:
		s.leader(a.Leader).serving = a.Serves
	case RestoreTemplate:
		s.own.template, s.own.restored, s.own.observed = revisionOf(a.Revision), true, false
		if a.Record != nil {
			w.setRecord(s, *a.Record)
			s.own.rolling = w.rolling(record.Hold())
		}
		w.starts(s)
	case RemoveRecord:
		s.record, s.phaseAt, s.targetAt, s.recorded, s.newer = 0, unset, unset, unset, false
		s.own.rolling, s.own.observed = w.rolling(a.Rolling), false
	case HandOver:
		s.succeeded = true
	case DeleteStable:
		s.over = true
	case HoldAutoscaler:
		s.held, s.noted = a.Hold, a.Hold
	case ReleaseAutoscaler:
		if s.held, s.noted = autoscaler.HoldNone, autoscaler.HoldNone; a.To != "" {
			s.passed = a.To != "vllm"
		}
	default:
		return fmt.Errorf("the small world has no %T", a)
	}
	w.collect(s)
	return nil
}

// leader returns the group of a leader.
func (s *state) leader(name string) *member {
	if i := slices.Index(leaderNames["vllm"], name); i >= 0 {
		return &s.own.groups[i]
	}
	return &s.added.groups[slices.Index(leaderNames[addedName(s.added.carries)], name)]
}

// collect is garbage collection: an added set that is deleted is gone once nothing keeps it.
func (w *world) collect(s *state) {
	if a := &s.added; a.exists && a.deleting && !a.finalizer && (!a.foreground || a.existing() == 0) {
		*a = lwset{}
		s.newer = false
	}
}

// leftover reports whether it has nothing but groups that lost nodes keep, and its deletion has lasted too long.
func (s *lwset) leftover() bool {
	for i := range s.groups {
		if m := &s.groups[i]; m.revision != 0 && m.fault != terminating {
			return false
		}
	}
	return s.deleting && !s.finalizer && s.deletingAt == old
}

func (s *lwset) existing() (n int) {
	for i := range s.groups {
		if s.groups[i].revision != 0 {
			n++
		}
	}
	return n
}

// existsFrom reports whether a group exists that LWS may replace under a partition.
func (s *lwset) existsFrom(partition int) bool {
	for i := partition; i < len(s.groups); i++ {
		if s.groups[i].revision != 0 {
			return true
		}
	}
	return false
}

// ready returns how many of the groups that stay are ready.
func (s *lwset) ready() (n int) {
	for i := range s.groups[:s.replicas] {
		if s.groups[i].ready {
			n++
		}
	}
	return n
}

func (w *world) setStable(s *state, a SetStable) error {
	r := a.Record
	// A batch of all groups has it from the history if every group has been updated before.
	if held := a.Rolling != nil && isHold(*a.Rolling); a.SaveTemplate && held && !slices.Contains(w.recordedRevisions(s), r.Release.StableRevision) {
		return fmt.Errorf("the template of %s is saved, which LeaderWorkerSet does not have", r.Release.StableRevision)
	}
	if r.Release != nil && (a.SaveTemplate || a.RestoreTemplate) {
		n := *r.Release
		n.StableTemplate = &record.Template{}
		r.Release = &n
	}
	w.setRecord(s, r)
	before := s.own
	if a.Rolling != nil {
		s.own.rolling = w.rolling(*a.Rolling)
	}
	if a.RestoreTemplate {
		s.own.template, s.own.restored = revisionOf(r.Release.StableRevision), true
	}
	if a.Replicas != nil {
		s.own.replicas = uint8(*a.Replicas)
	}
	if s.own != before {
		s.own.observed = false
	}
	return nil
}

// reconcile is LWS, as far as it concerns the leader StatefulSet.
func (w *world) reconcile(s *lwset) {
	l, limits := &s.leaders, native.LimitsOf(w.rollingOf(s), int(s.replicas))
	s.observed = true
	if !l.exists {
		*l = leaderSet{exists: true, replicas: s.replicas, noted: s.replicas, partition: partition(limits.Partition), update: s.template, current: s.template}
		l.unavailable = uint8(max(limits.Batch(), 1))
		return
	}
	states := w.states[:l.replicas]
	for i := range states {
		states[i] = native.ReplicaState{Ready: s.groups[i].ready || s.groups[i].fault == evicted, Updated: s.groups[i].revision == s.template && s.groups[i].revision != 0}
	}
	updated := l.update != s.template
	next := limits.Reconcile(native.Leaders{
		Replicas: int(l.replicas), Partition: int(l.partition), Unavailable: int(l.unavailable), Noted: int(l.noted),
	}, states, updated)
	l.update = s.template
	l.replicas, l.partition = uint8(next.Replicas), partition(next.Partition)
	l.noted, l.unavailable = uint8(next.Noted), uint8(min(next.Unavailable, 10))
}

func partition(n int) uint8 { return uint8(min(n, holdPartition)) }

// run is one pass of the StatefulSet controller, and of garbage collection for a set that is being deleted.
func (w *world) run(s *lwset) {
	if s.deleting && !s.foreground {
		return // the driver's finalizer keeps the object, and the object its groups
	}
	if s.deleting {
		for i := range s.groups {
			if m := &s.groups[i]; m.fault >= nodeLost {
				m.fault = terminating
			} else if m.revision != 0 {
				*m = member{}
				return
			}
		}
		return
	}
	l := &s.leaders
	for i := range s.groups {
		m := &s.groups[i]
		switch {
		case m.fault >= nodeLost && uint8(i) >= l.replicas:
			m.fault = terminating
		case uint8(i) >= l.replicas && m.revision != 0:
			*m = member{broken: m.broken, hurt: m.hurt}
		case uint8(i) < l.replicas && m.revision == 0:
			m.revision = l.update
			if uint8(i) < l.partition {
				m.revision = l.current
			}
			if m.revision != m.restarted {
				m.restarts, m.restarted = 0, 0
			}
			if m.lost == unset {
				m.lost = fresh
			}
		}
	}
	w.update(s)
	for i := range s.groups[:l.replicas] {
		if m := &s.groups[i]; !m.ready || m.revision != l.update {
			return
		}
	}
	l.current = l.update // whatever the partition
}

// update deletes groups, to be recreated at the update revision.
func (w *world) update(s *lwset) {
	l := &s.leaders
	room := int(l.unavailable)
	for i := range s.groups[:l.replicas] {
		if !s.groups[i].ready {
			room--
		}
	}
	for i := int(l.replicas) - 1; i >= int(l.partition); i-- {
		m := &s.groups[i]
		isOld := m.revision != l.update && m.revision != 0 && m.fault != terminating && m.fault != evicted
		switch {
		case isOld && !m.ready:
			s.remove(i)
		case isOld && w.parallel && room > 0:
			room--
			s.remove(i)
		case isOld && !w.parallel:
			s.remove(i)
			return
		case !w.parallel && !m.ready:
			return // one at a time, from the last to the first
		}
	}
}

// remove deletes the leader of a group.
func (s *lwset) remove(i int) {
	m := &s.groups[i]
	lost := m.lost
	if m.ready || lost == unset {
		lost = fresh
	}
	if m.fault >= nodeLost {
		m.fault = terminating
		return
	}
	*m = member{lost: lost, ran: m.ran, broken: m.broken, restarts: m.restarts, restarted: m.restarted, hurt: m.hurt}
}

// ready has a group become ready.
func (w *world) ready(m *member) {
	m.ready, m.since, m.ran, m.fault = true, fresh, m.revision, sound
	if m.first == unset && !w.minReady {
		m.first = fresh
	}
}

// lose has a group stop being ready.
func lose(m *member) {
	if m.ready && m.since != fresh || m.lost == unset {
		m.lost = fresh
	}
	m.ready, m.since, m.busy = false, unset, false
}

// pass lets time pass. quiet: nothing else was about to happen, so what the environment took is not its doing any more.
func (w *world) pass(s *state, long, quiet bool) {
	later := func(a *age) {
		switch {
		case *a == unset:
		case long:
			*a = old
		case *a == fresh:
			*a = recent
		}
	}
	s.restarting = s.restarting && !long // the driver waits for a StatefulSet controller no longer than the deadline
	if quiet && s.own.ready() == int(s.own.replicas) {
		s.grown, s.before = 0, 0
	}
	for _, a := range []*age{&s.phaseAt, &s.targetAt, &s.waitingSince, &s.waitingBefore, &s.recorded, &s.added.targetAt, &s.added.deletingAt} {
		later(a)
	}
	var draining []*member
	if w.routed && long {
		for _, g := range w.observe(s).drainingGroups() {
			draining = append(draining, s.leader(g.Leader))
		}
	}
	for _, set := range []*lwset{&s.own, &s.added} {
		for i := range set.groups {
			m := &set.groups[i]
			later(&m.since)
			later(&m.first)
			later(&m.lost)
			switch {
			case m.fault == nodeLost:
				m.fault = terminating // Kubernetes evicts them
			case m.fault == evicted && long:
				set.remove(i)
			}
			if m.busy && long && (s.silent || slices.Contains(draining, m)) {
				m.busy, m.cutOff = false, !s.silent // the drain gives up
			}
			if m.ready {
				if m.lost = unset; m.first == unset {
					m.first = m.since
				}
				m.hurt = m.hurt && !quiet
			}
		}
	}
}

// settle brings what follows at once in force: which groups receive requests.
func (w *world) settle(s *state) {
	s.restarting = s.restarting && s.own.existing() < int(s.own.leaders.replicas)
	if !w.routed {
		return
	}
	_, served := w.share(s)
	var bits uint64
	if w.routes.values[s.route].least < 100 {
		bits |= w.endpoints(s, s.selectors, false)
	}
	if served > 0 || w.routes.values[s.route].headers {
		bits |= w.endpoints(s, s.selectors, true)
	}
	for at, set := range []*lwset{&s.own, &s.added} {
		for i := range set.groups {
			m, receives := &set.groups[i], bits&(1<<(at*maxIndices+i)) != 0
			m.cutOff = m.cutOff && receives
			m.busy = m.busy || receives && !m.cutOff
		}
	}
}

// host makes a request of the host. False means it would be refused, or changes nothing.
func (w *world) host(s *state, a act) (Decision, bool) {
	var i Intent
	releaseID := w.releaseID(s)
	switch a.do {
	case actBegin, actStrict:
		if releaseID = releaseIDs[0]; w.releaseID(s) == releaseID {
			releaseID = releaseIDs[1]
		}
		if i = (Begin{ReleaseID: releaseID, Policy: w.policy}); a.do == actStrict {
			i = Begin{ReleaseID: releaseID, Policy: w.strict}
		}
	case actAdopt:
		i = Adopt{}
	case actBatch:
		i = SetTarget{ReleaseID: releaseID, Batch: &a.number}
	case actWeight:
		i = Route{ReleaseID: releaseID, Weight: &a.number}
	case actPromote:
		i = Promote{ReleaseID: releaseID}
	case actMirror:
		i = Route{ReleaseID: releaseID, Mirror: ptr.To(50)}
	case actHeaders:
		i = Route{ReleaseID: releaseID, HeaderRoute: &testers}
	case actNoHeaders:
		i = Route{ReleaseID: releaseID, HeaderRoute: &traffic.HeaderRoute{Name: testers.Name}}
	case actUndo:
		i = Undo{Revision: a.revision.String()}
	case actDisown:
		i = Disown{}
	case actRollBack, actForce:
		i = RollBack{ReleaseID: releaseID, Force: a.do == actForce}
	}
	if p := w.phase(s); (a.do == actBegin || a.do == actStrict) && p != "" && p.Unfinished() {
		return Decision{}, false
	}
	o := w.observe(s)
	if a.do == actWeight && !carries(&o, a.number) {
		return Decision{}, false // a host does not ask for more than its batch can carry
	}
	d, err := Decide(o, i)
	if err != nil || d.Action == nil || refusalOf(d.Action) == s.refuses {
		return Decision{}, false
	}
	switch r := o.release(); {
	case a.do == actDisown:
		s.asked[s.own.template] = 100 // LeaderWorkerSet rolls the workload by itself
	case a.do == actBegin, a.do == actStrict:
		if w.forced(s) {
			s.own.blame() // the last release ended with groups given up, and LeaderWorkerSet is about to delete its surge groups
		}
		if s.own.observed && isHold(w.rollingOf(&s.own)) { // otherwise LeaderWorkerSet may be rolling
			s.asked = [revisions + 1]uint8{}
		}
		s.asked[s.own.leaders.current] = 100
		for i := range s.own.groups {
			s.asked[s.own.groups[i].revision] = 100
		}
	case r != nil:
		update := revisionOf(r.UpdateRevision)
		for to := range s.asked {
			switch {
			case update != 0 && revision(to) != update: // 0: the one that LWS records next, since this host names none
			case a.do == actPromote:
				s.asked[to] = 100
			case a.do == actBatch && w.inPlace():
				s.asked[to] = max(s.asked[to], [...]uint8{50, 100}[a.number])
			}
		}
	}
	adopts := s.record == 0
	if err := w.apply(s, d.Action); err != nil {
		return Decision{}, false
	}
	if adopts {
		w.absorb(s)
	}
	return d, true
}

// absorb notes the user's own configuration after an edit, as far as the driver can know it.
func (w *world) absorb(s *state) {
	if o := w.observe(s); o.Record != nil {
		s.pace = w.rolling(record.Native(Saved(o)))
	}
}

// releaseID returns that of the recorded release, or "".
func (w *world) releaseID(s *state) string {
	if r := w.release(s); r != nil {
		return r.ID
	}
	return ""
}

// carries reports whether the groups of the batch are enough for a share.
func carries(o *Observation, weight int) bool {
	if o.release() == nil {
		return false
	}
	n, err := o.Target().Planned(o.Stable.Replicas)
	return err == nil && n*100 >= o.Stable.Replicas*weight
}

// disturb is a person, a tool of theirs, or what happens to machines. False means it changes nothing.
func (w *world) disturb(s *state, a act) bool {
	before := *s
	set := []*lwset{&s.own, &s.added}[a.set]
	m := &set.groups[a.index]
	switch a.do {
	case actEdit:
		w.editTemplate(s, a.revision)
	case actAutoscale:
		up := a.number > int(s.own.replicas)
		if s.passed {
			break
		}
		if s.own.replicas == 0 || s.held == autoscaler.HoldAll || s.held == autoscaler.HoldDown && !up {
			break
		}
		fallthrough
	case actScale:
		if s.own.replicas != uint8(a.number) && !isZeroPace(w.rollingOf(&s.own), a.number) {
			if a.number > int(s.own.replicas) {
				s.grown += uint8(a.number) - s.own.replicas
			}
			for i := range a.number {
				m := &s.own.groups[i] // the StatefulSet may still be about to remove some
				m.hurt = m.hurt || i >= int(s.own.leaders.replicas)
			}
			s.own.replicas, s.own.byHand, s.own.auto, s.own.observed = uint8(a.number), true, a.do == actAutoscale, false
			if !s.succeeded { // the object that is about to be deleted is not the workload any more
				s.wanted = s.own.replicas
			}
			w.starts(s)
		}
	case actRestoreSet: // a backup has one of an earlier release with the same template
		if r := w.release(s); r != nil && !s.added.exists && !s.over && !s.succeeded {
			update := revisionOf(r.UpdateRevision)
			s.added = lwset{exists: update != 0, finalizer: true, template: update, made: update, carries: update, replicas: 1, rolling: w.rolling(record.Native(record.Hold()))}
		}
	case actRescale: // another client restores its settings
		s.held = autoscaler.HoldNone
	case actApply: // a manifest with the user's own number of groups and pace, and without the hold
		unheld := w.disturb(s, act{do: actUnhold})
		return w.disturb(s, act{do: actScale, number: a.number}) || unheld
	case actScaleAdded:
		if set = &s.added; set.exists && !set.deleting && set.replicas != uint8(a.number) {
			set.replicas, set.byHand, set.observed = uint8(a.number), true, false
			if s.succeeded {
				s.wanted = set.replicas // it is the workload
			}
			for i := a.number; i < maxIndices; i++ {
				set.groups[i].hurt = true
			}
		}
	case actEditAdded:
		if set = &s.added; set.exists && !set.deleting {
			set.blame() // LeaderWorkerSet replaces its groups
			set.template, set.observed = set.template%revisions+1, false
		}
	case actDeleteAdded:
		if set = &s.added; set.exists && !set.deleting {
			set.deleting, set.deletingAt = true, fresh
			w.collect(s)
		}
	case actLose:
		if m.ready {
			lose(m)
			m.hurt = true
		}
	case actKill:
		if m.revision != 0 {
			set.remove(int(a.index))
			m.hurt = true
			w.collect(s)
		}
	case actBreak:
		if m.revision != 0 {
			lose(m)
			m.broken, m.hurt = m.revision, true
		}
	case actRepair:
		if m.broken = 0; m.fault < nodeLost {
			break
		}
		gone := m.fault == terminating
		if m.fault = sound; gone {
			set.remove(int(a.index))
			w.collect(s)
		}
	case actLoseWorker:
		if m.ready {
			lose(m)
			m.fault, m.hurt = workerUnready, true
		}
	case actEvict:
		if m.ready {
			lose(m)
			m.fault, m.hurt = evicted, true
		}
	case actLoseNode:
		if m.revision != 0 && m.fault < nodeLost {
			lose(m)
			m.fault, m.hurt = nodeLost, true
		}
	case actSilence, actAnswer:
		s.silent = a.do == actSilence
	case actPace:
		w.editPace(s, parsePace(paces[a.number]))
	case actForget:
		if s.succeeded || s.record == 0 {
			break // the successor is a workload of its own
		}
		if is := w.rollingOf(&s.own); scaledValue(is.MaxUnavailable, w.replicas, false) > scaledValue(w.rollings.values[s.pace].MaxUnavailable, w.replicas, false) {
			s.pace = s.own.rolling // what the user had is lost with the record
		}
		w.outliveForce(s)
		s.kept = w.inPlace() && w.routed && w.release(s) != nil
		s.unnamed = w.routed && !w.inPlace() && !s.added.finalizer
		s.record, s.phaseAt, s.targetAt, s.recorded, s.newer = 0, unset, unset, unset, false
	case actOldObject:
		w.outliveForce(s)
		w.restoreOld(s)
	case actLabel:
		m.serving = !m.serving
	case actRefuse:
		s.refuses = uint8(a.number)
	case actAccept:
		s.refuses, s.refused = 0, false
	case actUnserve:
		w.editObjects(s, a.do, func(o *model.Objects) { o.Canary = nil })
	case actRevert:
		s.own.blame()
		w.editObjects(s, a.do, func(o *model.Objects) { o.Routes = w.worlds.values[w.untouched].Routes })
	case actEndSplit:
		s.own.blame()
		w.editObjects(s, a.do, func(o *model.Objects) { o.Stable = w.worlds.values[w.untouched].Stable })
	case actUnhold:
		if w.admission && s.record != 0 && isHold(w.rollingOf(&s.own)) { // the policy keeps the hold, and notes what the user wants
			w.editPace(s, record.Native(w.user))
			break
		}
		if native := w.rolling(record.Native(w.user)); s.own.rolling != native {
			s.own.rolling, s.own.observed = native, false
			s.own.blame()
			w.absorb(s)
			s.asked[s.own.template] = 100 // the user has LWS roll
		}
	case actDecide:
		o := w.observe(s)
		if d := reconcile(o); s.late == 0 && d.Action != nil {
			s.late = uint16(w.writes.put(encoded(fmt.Sprintf("%T", d.Action), d.Action), d.Action))
		}
	case actFull, actAdmit:
		s.full = a.do == actFull
	case actUnscan, actScan:
		s.unscanned = a.do == actUnscan
	case actLWSDown, actLWSUp:
		s.lwsDown = a.do == actLWSDown
	case actGatewayDown, actGatewayUp:
		s.gatewayDown = a.do == actGatewayDown
	case actPickerDown, actPickerUp:
		s.pickerDown = a.do == actPickerDown
	case actRestart:
		w.restartDriver(s)
	}
	room := int(s.own.replicas)+scaledValue(w.rollings.values[s.pace].MaxSurge, int(s.own.replicas), true) <= maxIndices
	return *s != before && room
}

// blame notes that the environment, and not the driver, takes the groups of a set that are lost from now on.
func (s *lwset) blame() {
	for i := range s.groups {
		s.groups[i].hurt = true
	}
}

// blameSurge notes that a user, and not the driver, has LeaderWorkerSet delete the groups from an index on.
func (s *lwset) blameSurge(from int) {
	for i := from; i < maxIndices; i++ {
		s.groups[i].hurt = s.groups[i].revision != 0
	}
}

// editTemplate edits the template. The admission policy holds the workload in the same request.
func (w *world) editTemplate(s *state, r revision) {
	if s.own.template == r {
		return
	}
	s.own.template, s.own.restored, s.own.observed = r, false, false
	if now := w.rollingOf(&s.own); s.record != 0 && !record.SameRolling(now, record.Hold()) {
		s.own.blameSurge(int(s.own.replicas)) // the hold has no surge, and the driver sets it, too
		if w.admission {
			now.Partition, now.MaxSurge = record.Hold().Partition, record.Hold().MaxSurge
			if scaledValue(now.MaxUnavailable, int(s.own.replicas), false) == 0 {
				now.MaxUnavailable = record.Hold().MaxUnavailable
			}
			s.own.rolling = w.rolling(now)
		}
	}
	w.absorb(s) // what the driver has not seen is lost by the hold
	w.starts(s)
}

// editPace edits the user's maxUnavailable and maxSurge. What equals what the driver has set is no edit.
func (w *world) editPace(s *state, to rolling) {
	is, own := w.rollingOf(&s.own), w.rollings.values[s.pace]
	if most := w.replicas + 1; isZeroPace(to, int(s.own.replicas)) || most+scaledValue(to.MaxSurge, most, true) > maxIndices {
		return // LeaderWorkerSet refuses it, or the world is too small
	}
	if is.MaxUnavailable != to.MaxUnavailable {
		own.MaxUnavailable, is.MaxUnavailable = to.MaxUnavailable, to.MaxUnavailable
	}
	if is.MaxSurge != to.MaxSurge {
		own.MaxSurge, is.MaxSurge = to.MaxSurge, to.MaxSurge
	}
	if r := w.recordOf(s); w.admission && r != nil && isHold(w.rollingOf(&s.own)) {
		next := *r // the policy keeps the hold, and what the user wants, which the driver saves
		next.Saved = own
		w.setRecord(s, next)
		s.before, s.pace = s.pace, w.rolling(own)
		return
	}
	if id := w.rolling(is); id != s.own.rolling {
		if s.before = s.pace; scaledValue(w.rollingOf(&s.own).MaxUnavailable, w.replicas, false) > scaledValue(own.MaxUnavailable, w.replicas, false) {
			s.before = s.own.rolling // by which LeaderWorkerSet has lowered the partition already
		}
		s.own.rolling, s.own.observed, s.pace = id, false, w.rolling(own)
		s.own.blameSurge(int(s.own.replicas) + scaledValue(is.MaxSurge, int(s.own.replicas), true))
		w.absorb(s)
	}
}

// outliveForce notes that what force has given up stays so, though the record does not say it any more.
func (w *world) outliveForce(s *state) {
	if w.forced(s) {
		s.grown = max(s.grown, s.own.replicas)
	}
}

// restoreOld replaces the workload by what it was when the release began, as a backup or an old manifest does.
func (w *world) restoreOld(s *state) {
	r := w.recordOf(s)
	// The successor is a workload of its own, and a release without a stable revision never had anything under way.
	if r == nil || r.Release == nil || r.Release.StableRevision == "" || s.succeeded {
		return
	}
	old, release := *r, *r.Release
	release.Phase, release.Target, release.Traffic, release.StableTemplate = record.Progressing, nil, nil, nil
	release.SplitEnded, release.RestartsExhausted, release.Force, release.GivenUp = false, "", false, nil
	release.Successor, release.Groups, release.Waiting = "", 0, record.Waiting{}
	old.Release = &release
	w.setRecord(s, old.WithSet(record.Hold()))
	if held := w.rolling(record.Hold()); s.own.rolling != held {
		s.own.rolling, s.own.observed = held, false
		s.own.blame() // LeaderWorkerSet deletes surge groups under the hold
	}
	w.absorb(s)
}

// starts notes that groups which LWS starts from none run the template in the spec: it keeps no other.
func (w *world) starts(s *state) {
	if s.own.replicas == 0 || s.own.existing() == 0 || int(ptr.Deref(w.rollingOf(&s.own).Partition, 0)) < int(s.own.replicas) && (!w.admission || s.record == 0) {
		s.asked[s.own.template] = 100
	}
}

// restartDriver has another process drive: it knows only what the cluster shows.
func (w *world) restartDriver(s *state) {
	s.waiting, s.waitingSince, s.waitingBefore, s.blind, s.unscanned = 0, unset, unset, w.routed, w.limited && w.scaler
	s.unnamed = s.unnamed || s.kept && s.record == 0
	s.kept, s.refused = false, false
	for _, set := range []*lwset{&s.own, &s.added} {
		for i := range set.groups {
			m := &set.groups[i]
			if m.restarts, m.restarted, m.first, m.warm = 0, 0, unset, false; m.ready && (m.since != fresh || !w.minReady) {
				m.first = m.since
			}
			switch {
			case m.ready, m.revision == 0:
				m.lost = unset
			}
		}
	}
}

// stale reports whether the object of a late write has changed, so that the API server refuses it.
func (w *world) stale(late Action, before, after *state) bool {
	spec := func(s *lwset) lwset {
		return lwset{exists: s.exists, deleting: s.deleting, finalizer: s.finalizer, template: s.template, replicas: s.replicas, rolling: s.rolling, target: s.target}
	}
	// pod is the leader that a write is for, as far as the condition of the write depends on it: the zero value once it is gone.
	pod := func(s *state, name string) member {
		for i, set := range []*lwset{&s.own, &s.added} {
			names := leaderNames[[...]string{"vllm", addedName(s.added.carries)}[i]]
			if at := slices.Index(names, name); at >= 0 {
				m := set.groups[at]
				return member{revision: m.revision, ready: m.ready, serving: m.serving, since: m.since}
			}
		}
		return member{}
	}
	switch a := late.(type) {
	case SetStable, DeleteStable:
		return before.record != after.record || before.phaseAt != after.phaseAt || before.recorded != after.recorded ||
			spec(&before.own) != spec(&after.own)
	case CreateCanary, ScaleCanary, RepairCanary, DeleteCanary, RemoveFinalizer, HandOver:
		return spec(&before.added) != spec(&after.added)
	case SetTraffic:
		return before.objects != after.objects
	case RestartGroup:
		return pod(before, a.Leader) != pod(after, a.Leader)
	case LabelServing:
		return a.Serves && pod(before, a.Leader) != pod(after, a.Leader) || pod(before, a.Leader).revision != pod(after, a.Leader).revision
	}
	return before.held != after.held
}
