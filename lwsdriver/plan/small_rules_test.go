// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
	"github.com/lockstep-rollouts/lockstep/traffic/model"
)

// The safety rules, as what the small world must never do. They know the state of the world, and neither the planner's reasons nor its
// counts. Their numbers:
//
//	 1  before a canary group can become ready, the stable Service selects stable leaders only
//	 2  a side gets no larger share than its groups can carry
//	 3  a share is withdrawn and drained before the groups behind it are removed
//	 4  only the host begins a promotion, and the canary stays in mid-release
//	 5  no more groups are unavailable, or added, than allowed
//	 6  a rollback stays one
//	 7  nothing of a release is left at its end but the hold
//	 8  every wait ends, or fails with its cause
//	11  no group leaves its revision unless that was asked for
//	12  the driver restarts groups only while LeaderWorkerSet does not roll, and the reverse
//	13  a stale cache justifies no ready batch, no promotion, no larger share and no removal; an abort is accepted

// shortage returns how many groups the sides lack for the requests that they get, by what the routes say and by what the gateway
// serves, whichever is worse.
func (w *world) shortage(s *state) int {
	n := int(s.own.replicas)
	if w.phase(s) == record.HandingOver {
		n = w.release(s).Groups
	}
	if !w.routed {
		ready := 0
		for i := range s.own.groups {
			if s.own.groups[i].ready || w.adopt && s.added.groups[i].ready { // the second set takes the place of the user's own
				ready++
			}
		}
		return max(n-ready, 0)
	}
	now := w.of[s.objects].selectors
	worst := 0
	for _, share := range w.eachShare(s) {
		for _, selectors := range []uint8{now, s.selectors} {
			lacks, needs, behind := 0, 0, uint64(0)
			for _, side := range []struct {
				share int
				bits  uint64
			}{{100 - share, w.endpoints(s, selectors, false)}, {share, w.endpoints(s, selectors, true)}} {
				groups := (n*side.share + 99) / 100
				lacks, needs = lacks+max(groups-bits.OnesCount64(side.bits), 0), needs+groups
				if side.share > 0 {
					behind |= side.bits
				}
			}
			lacks = max(lacks, needs-bits.OnesCount64(behind)) // in place, one leader may be behind both Services
			worst = max(worst, lacks-roundedUp(n, share))
		}
	}
	return worst
}

// roundedUp is 1 if both sides' parts of n groups are rounded up.
func roundedUp(n, share int) int {
	if n*share%100 != 0 {
		return 1
	}
	return 0
}

// allowed returns how many groups may be unavailable.
func (w *world) allowed(s *state) int {
	unavailable := func(pace uint8) int {
		return scaledValue(Pace(w.rollings.values[pace], int(s.own.replicas)).MaxUnavailable, int(s.own.replicas), false)
	}
	n := unavailable(s.pace)
	if s.before != 0 {
		n = max(n, unavailable(s.before))
	}
	if r := w.release(s); w.threshold && r != nil {
		n = max(n, w.tolerated(s, max(int(s.own.replicas), r.Groups)))
	}
	if r := w.release(s); r != nil && (r.Phase == record.RollingBack || r.Phase == record.CleaningUp) {
		if n = max(n, 1); w.forced(s) {
			return max(n, int(s.own.replicas)) // a person wants the rollback whatever it costs
		}
	}
	if w.inPlace() {
		n = max(n, 1) + w.isolated(s)
	}
	if pace := w.rollingOf(&s.own); isHold(pace) && pace.MaxSurge.IntValue() > 0 {
		n = max(n, 1) // LeaderWorkerSet removes a surge group before the last missing group is ready
	}
	return n
}

// tolerated returns how many of a number of groups the release tolerates to be not ready.
func (w *world) tolerated(s *state, groups int) int {
	policy := w.records.values[s.record].policy
	return policy.Threshold(groups)
}

// surge returns how many groups may be added.
func (w *world) surge(s *state) int {
	n := scaledValue(w.rollings.values[s.pace].MaxSurge, int(s.own.replicas), true)
	if s.before != 0 {
		n = max(n, scaledValue(w.rollings.values[s.before].MaxSurge, int(s.own.replicas), true))
	}
	if s.record == 0 {
		n = max(n, scaledValue(w.rollingOf(&s.own).MaxSurge, int(s.own.replicas), true)) // another client has removed the hold
	}
	return n
}

func (w *world) forced(s *state) bool {
	r := w.release(s)
	return r != nil && r.Force
}

// isolated returns how many groups of a batch in place are ready and get requests only once the host asks for a share.
func (w *world) isolated(s *state) (n int) {
	r := w.release(s)
	if !w.routed || r == nil && !w.inPlace() {
		return 0
	}
	var bits uint64
	now := w.of[s.objects].selectors
	if written, served := w.share(s); written > 0 && served > 0 {
		bits = w.endpoints(s, s.selectors, true) & w.endpoints(s, now, true)
	}
	bits |= w.endpoints(s, s.selectors, false) & w.endpoints(s, now, false)
	for i := range s.own.groups {
		if m := &s.own.groups[i]; m.ready && (r == nil || m.revision == revisionOf(r.UpdateRevision)) && bits&(1<<i) == 0 {
			n++
		}
	}
	return n
}

// unreached returns the ready groups, as bits, that the stable Service selects and has no endpoint for yet.
func (w *world) unreached(s *state) uint64 {
	if !w.routed {
		return 0
	}
	if w.routes.values[w.of[s.objects].route].least == 100 {
		return 0 // they get no requests
	}
	return (1<<s.own.replicas - 1) & w.endpoints(s, w.of[s.objects].selectors, false) &^ w.endpoints(s, s.selectors, false)
}

// shared reports whether routes or the gateway send a share to the update.
func (w *world) shared(s *state) bool {
	if !w.routed {
		return false
	}
	written, served := w.share(s)
	return written > 0 || served > 0
}

// requests returns how many ready groups of a set have requests, as far as routes say.
func (w *world) requests(s *lwset) (n int) {
	for i := range s.groups {
		if w.routed && s.groups[i].ready && s.groups[i].busy {
			n++
		}
	}
	return n
}

// hurt returns how many groups the environment took, and has not given back.
func (s *lwset) hurt() (n int) {
	for i := range s.groups {
		if m := &s.groups[i]; !m.ready && (m.hurt || m.revision != 0 && m.broken == m.revision) {
			n++
		}
	}
	return n
}

// breach returns which rule a step breaks, or "" if there is none.
func (w *world) breach(before *state, a act, d Decision, after *state) string {
	if text := w.breachOfRoll(before, d, after); text != "" && a.do != actLate {
		return text
	}
	switch a.do {
	case actDrive:
		if text := w.breachOfDriver(before, d, after); text != "" {
			return text
		}
	case actLate: // what has changed since it was decided is for the next decision
	case actReconcile, actRun, actEndpoints, actGateway, actBegin, actBatch, actWeight, actPromote, actRollBack, actForce, actHeaders, actNoHeaders, actDisown, actAdopt, actUndo, actMirror, actStrict:
	default:
		return ""
	}
	if added := &before.added; before.record == 0 && after.record == 0 && (!w.shared(after) || !added.exists || added.deleting && !added.finalizer) && a.do != actDrive {
		return "" // no driver manages the workload
	}
	if a.do == actRun && after.refused && !w.admission {
		return "" // the hold can't be written, and without the admission policy LeaderWorkerSet replaces the batch's groups again
	}
	lacks, lacked, allowed := w.shortage(after), w.shortage(before), w.allowed(after)+int(after.grown)
	if a.do == actRun {
		// LeaderWorkerSet counts the groups when it sets the partition, and some may be lost until it is in force.
		allowed += after.own.hurt() + after.added.hurt()
	}
	if r := w.release(after); r != nil && w.phase(before) == record.HandingOver {
		lacked += max(r.Groups-w.release(before).Groups, 0) // the second set follows a scale-up
	}
	_, routes := d.Action.(SetTraffic)
	if routes { // the driver counts neither groups of a surge, nor ones of a second set that are not warm and that another client leads requests to
		counted := before.lasting()
		for i := range counted.added.groups {
			m := &counted.added.groups[i]
			m.ready = m.ready && (!w.warmUp || m.warm || m.serving)
		}
		lacked = max(lacked, w.shortage(counted))
	}
	for i := int(before.added.replicas); i < maxIndices; i++ {
		if m := &before.added.groups[i]; m.ready && m.hurt {
			allowed++ // another client has scaled it down, and LeaderWorkerSet removes the group
		}
	}
	if a.do == actLate {
		return "" // another client may have changed what it was decided from, and the next decision repairs it
	}
	if lacks > max(lacked, allowed) {
		return fmt.Sprintf("rule 2, 5: the sides lack %d groups for their requests, and %d before; %d may be unavailable", lacks, lacked, allowed)
	}
	if a.do != actEndpoints && (a.do != actRun || after.own.hurt()+after.added.hurt() == 0 && !after.own.byHand) {
		switch {
		case w.unanswered(after) && !w.unanswered(before):
			return "rule 2: a header leads to the canary, which has no endpoint"
		case (routes || !w.forced(after)) && w.starved(before, after):
			return "rule 2: requests go to a side without an endpoint, and the other one has some"
		}
	}
	if most := int(after.own.replicas) + w.surge(after); a.do == actReconcile && int(after.own.leaders.replicas) > max(most, int(before.own.leaders.replicas)) {
		return fmt.Sprintf("rule 5: %d groups, and at most %d are allowed", after.own.leaders.replicas, most)
	}
	if a.do == actRun && a.set == 0 {
		return w.unasked(before, after)
	}
	return ""
}

// forgotten: a wait that has lasted too long has done so for the next driver, too. One that was not recorded yet is, unless the API server
// refuses writes.
func (w *world) forgotten(d Decision, after *state) string {
	if after.refuses != 0 || w.release(after) == nil || d.State != pb.State_STATE_FAILED || d.Deadline.IsZero() || d.Action != nil {
		return ""
	}
	for _, set := range []*lwset{&after.own, &after.added} {
		if slices.ContainsFunc(set.groups[:], func(m member) bool { return m.ready && m.since == fresh }) {
			return "" // the next driver can't know that the group has been ready before
		}
	}
	next := reconcile(w.observe(after))
	repairs := next.Action != nil && next.Waiting.Recorded != (time.Time{})
	if next.State != pb.State_STATE_FAILED && !repairs {
		return fmt.Sprintf("rule 8: the release failed with %s, and waits anew after a restart with %s", d.Reason, next.Reason)
	}
	return ""
}

// unasked: no group leaves its revision unless that was asked for.
func (w *world) unasked(before, after *state) string {
	var count [revisions + 1]int
	for i := range after.own.groups[:after.own.replicas] {
		count[after.own.groups[i].revision]++
	}
	for i := range after.own.groups {
		is := after.own.groups[i].revision
		if is == 0 || before.own.groups[i].revision == is || before.own.groups[i].ran == is {
			continue
		}
		// A scale-up adds groups above the partition of a batch.
		if n := int(after.own.replicas); (count[is]-int(after.grown))*100 > (n*int(after.asked[is])+99)/100*100 {
			if r := w.release(after); r != nil && r.StableRevision == is.String() {
				continue // every group ran it when the release started over with another one
			}
			return fmt.Sprintf("rule 11: %d of %d groups run revision %s, and %d %% were asked for", count[is], n, is, after.asked[is])
		}
	}
	return ""
}

// breachOfRoll returns which rule a write breaks that lets LeaderWorkerSet replace more groups.
func (w *world) breachOfRoll(before *state, d Decision, after *state) string {
	from, to := ptr.Deref(w.rollingOf(&before.own).Partition, 0), ptr.Deref(w.rollingOf(&after.own).Partition, 0)
	if _, ok := d.Action.(SetStable); !ok || to >= from {
		return ""
	}
	replaces, late := before.own.existsFrom(int(to)), w.unreached(before)
	switch {
	case replaces && before.restarting && before.own.existing() < int(before.own.replicas):
		return "rule 12: LeaderWorkerSet may roll while a group that was restarted does not exist"
	case replaces && slices.ContainsFunc(before.own.groups[:before.own.replicas], func(m member) bool { return m.fault == evicted }):
		return "rule 5: LeaderWorkerSet may roll while it takes a group for available that is being deleted"
	case late != 0:
		return fmt.Sprintf("rule 5: LeaderWorkerSet may roll, and the endpoints of the Service lack groups %03b, which it counts as available", late)
	}
	return ""
}

func (w *world) breachOfDriver(before *state, d Decision, after *state) string {
	if d.Reason == ReasonInvariantViolation {
		return d.Message
	}
	p, next := w.phase(before), w.phase(after)
	back := p == record.RollingBack || p == record.CleaningUp
	switch {
	case back && next != record.RollingBack && next != record.CleaningUp:
		return fmt.Sprintf("rule 6: phase %s becomes %s", p, next)
	case next == record.Promoting && p != next && p != record.HandingOver:
		return fmt.Sprintf("rule 4: phase %s becomes %s", p, next)
	}
	was, r := w.release(before), w.release(after)
	anew := next == record.Progressing && was != nil && was.UpdateRevision != r.UpdateRevision && r.UpdateRevision != r.StableRevision
	waits := func(m member) bool { return m.revision != 0 && m.revision.String() != r.UpdateRevision }
	if anew && w.resizes && w.inPlace() && slices.ContainsFunc(before.own.groups[:], waits) && (r.UpdateRevision == "C") != (r.StableRevision == "C") {
		return fmt.Sprintf("rule 11: a release in place from revision %s to %s, whose groups have another size", r.StableRevision, r.UpdateRevision)
	}
	switch a := d.Action.(type) {
	case SetStable:
		if a.Replicas != nil && *a.Replicas == 0 && w.requests(&before.own) > 0 {
			return fmt.Sprintf("rule 3: %s, and %d of its groups have requests", a, w.requests(&before.own))
		}
	case HandOver:
		if n := before.added.existing(); n < int(before.added.replicas) || before.added.deleting || before.own.existing() > 0 {
			return fmt.Sprintf("rule 5: %s with %d groups", a, n)
		}
		if before.added.template != before.added.made {
			return fmt.Sprintf("rule 11: %s with a template that no release has released", a)
		}
	case LabelServing:
		if m := before.leader(a.Leader); w.warmUp && a.Serves && !m.warm && !m.serving {
			return fmt.Sprintf("rule 2: %s, and it has not answered its warm-up request", a)
		}
	case RestartGroup:
		if !before.own.observed || before.own.leaders.partition < before.own.leaders.replicas {
			return "rule 12: " + a.String() + " while LeaderWorkerSet may roll"
		}
		kept := slices.ContainsFunc(before.own.groups[:], func(m member) bool { return m.revision.String() == was.StableRevision })
		if w.resizes && kept && (before.own.template.String() == "C") != (was.StableRevision == "C") {
			return "rule 5: " + a.String() + " whose pods would be built from two revisions"
		}
	case CreateCanary, ScaleCanary:
		r := w.release(before)
		if int(after.added.replicas) > max(int(before.own.replicas), int(before.added.replicas), r.Replicas, r.Groups) {
			return fmt.Sprintf("rule 5: %s beside %d", a, before.own.replicas)
		}
		if w.routed && p != record.HandingOver && after.added.replicas > before.added.replicas && w.selects(endpoint{selectors: w.of[before.objects].selectors, carries: after.added.carries, revision: after.added.carries}) {
			return fmt.Sprintf("rule 1: %s, and the stable Service selects its leaders", a)
		}
		for i := int(after.added.replicas); w.routed && i < maxIndices; i++ {
			if m := before.added.groups[i]; m.ready && m.busy && !m.hurt {
				return fmt.Sprintf("rule 3: %s, and group %d has requests", a, i)
			}
		}
	case DeleteCanary, RemoveFinalizer:
		if w.adopt && w.serves(&before.added) && before.own.ready() == 0 && before.own.replicas > 0 && !w.forced(before) {
			return fmt.Sprintf("rule 5: %s, which alone serves", a)
		}
		if n := w.requests(&before.added); n > 0 && !w.inPlace() { // no release in place sends any to it
			return fmt.Sprintf("rule 3: %s, and %d of its groups have requests", a, n)
		}
		if !w.inPlace() && p == record.Progressing && before.added.carries == before.own.template && !before.added.deleting && before.own.template == revisionOf(w.release(before).UpdateRevision) {
			return fmt.Sprintf("rule 4: %s in mid-release", a)
		}
	}
	return ""
}

// untrue returns what a decision says that is not so, or that it does not restore the hold first, or "".
func (w *world) untrue(s *state, d Decision) string {
	r := w.release(s)
	if _, holds := d.Action.(SetStable); !holds && w.unheld(s) {
		return fmt.Sprintf("rule 11: the hold stays overwritten in phase %s, %s: %s", r.Phase, d.Reason, d.Message)
	}
	const missing = "has not been created yet"
	if strings.Count(d.Message, missing) != strings.Count(d.Message, missing+" by the ") {
		return "rule 8: who is to create a group in " + d.Message
	}
	off := func(revision string) bool {
		return slices.ContainsFunc(s.own.groups[:s.own.replicas], func(m member) bool {
			return m.revision != 0 && m.revision != revisionOf(revision) && (m.fault != terminating || !w.forced(s))
		})
	}
	switch d.Reason {
	case ReasonPromoted, ReasonRolledBack:
		runs := r.UpdateRevision
		if d.Reason == ReasonRolledBack {
			runs = r.StableRevision
		}
		if off(runs) && s.own.leaders.update == s.own.template {
			return "status: " + d.Message
		}
	case ReasonHeld:
		if !isHold(w.rollingOf(&s.own)) || !w.inPlace() && s.added.exists && !s.added.leftover() {
			return "status: " + d.Message
		}
	}
	if d.State != pb.State_STATE_READY {
		return ""
	}
	o := w.observe(s)
	planned, _ := o.Target().Planned(int(s.own.replicas))
	need, set, from, ready := planned, &s.added, 0, 0
	if w.inPlace() {
		set, from = &s.own, int(s.own.replicas)-planned
	}
	need -= w.tolerated(s, need)
	asked := w.routed && !r.SplitEnded
	for i := from; i < from+planned; i++ {
		if m := set.groups[i]; m.ready && (!w.warmUp || m.warm || m.serving || !asked) && m.revision == s.own.template && (m.since != fresh || !w.minReady) {
			ready++
		}
	}
	if ready < need {
		return fmt.Sprintf("status: %s: %d of %d are", d.Message, ready, need)
	}
	if !w.routed || r.SplitEnded || planned == 0 || Switches(w.style) { // a second set gets requests once it is complete
		return ""
	}
	for _, share := range w.eachShare(s) {
		if want := r.Traffic.RequestedWeight(); share != want {
			return fmt.Sprintf("status: %s, and %d %% of the requests are routed instead of %d %%", d.Message, share, want)
		}
	}
	return ""
}

// unwoken returns what a decision is to become by time alone, although no timer is set, or "".
func (w *world) unwoken(before, after *state) string {
	d, next := reconcile(w.observe(before)), reconcile(w.observe(after))
	note, _ := next.Action.(SetStable)
	waits := next.Action == nil || note.Why == whySaveWait
	renews := d.State == pb.State_STATE_FAILED && !atRestIn(next.State) // a group that stayed ready for minReady renews a deadline
	if d.Recheck > 0 || d.Action != nil || waits && (renews || d.State == next.State && d.Reason == next.Reason) {
		return ""
	}
	return fmt.Sprintf("rule 8: by time alone %s, %s becomes %s, %s, and writes %v; but nothing wakes the driver", d.State, d.Reason, next.State, next.Reason, next.Action)
}

// breachOfStale returns what the driver does in a state whose caches are stale, although it must not, or "".
func (w *world) breachOfStale(as *state) string {
	copied := *as
	s := &copied
	o := w.observe(s)
	o.Stale = []StaleCache{{Resource: "pods", Since: noon.Add(-time.Minute), Why: "429"}}
	w.collect(s) // whatever the driver does
	d, after, share := reconcile(o), *s, 0
	if o.Traffic != nil {
		share = o.Traffic.Facts().Weight
	}
	if err := w.apply(&after, d.Action); err != nil {
		return err.Error()
	}
	is, next := w.phase(s), w.phase(&after)
	if _, creates := d.Action.(CreateCanary); creates {
		s.added = lwset{} // a leftover, which stays
	}
	switch {
	case d.State == pb.State_STATE_READY:
		return "rule 13: a batch counts as ready by a stale cache"
	case d.Action == nil:
	case restsOnPods(o, d.Action), is == record.RollingBack && next == record.CleaningUp:
		return fmt.Sprintf("rule 13: phase %s, then %s: %s by a stale cache", is, next, d.Action)
	case next != is && slices.Contains([]record.Phase{record.Promoting, record.Standby, record.HandingOver, record.Promoted}, next):
		return fmt.Sprintf("rule 13: phase %s becomes %s by a stale cache", is, next)
	case w.rollingOf(&after.own).Partition != nil && *w.rollingOf(&after.own).Partition < ptr.Deref(w.rollingOf(&s.own).Partition, 0):
		return "rule 13: LeaderWorkerSet may replace groups by a stale cache: " + d.Action.String()
	case is != next && next == record.RollingBack: // the way back protects
	case after.added.replicas < s.added.replicas, after.own.replicas < s.own.replicas, after.own.existing() < s.own.existing(),
		after.added.deleting && !s.added.deleting, s.added.exists && !after.added.exists:
		return "rule 13: groups are removed by a stale cache: " + d.Action.String()
	}
	if t := w.observe(&after).Traffic; t != nil && t.Facts().Weight > share {
		return "rule 13: a larger share by a stale cache: " + d.Action.String()
	}
	for _, i := range []Intent{RollBack{ReleaseID: w.releaseID(s)}, Promote{ReleaseID: w.releaseID(s)}, Disown{}} {
		if _, disown := i.(Disown); disown && (!w.disown || is.Unfinished()) {
			break // it is refused
		}
		o := w.observe(s)
		fresh, err := Decide(o, i)
		o.Stale = []StaleCache{{Resource: "pods"}}
		_, blind := Decide(o, i)
		if _, abort := i.(RollBack); abort && err != nil && (is == record.Progressing || is == record.Promoting || is == record.Standby || is == record.RollingBack) {
			return fmt.Sprintf("rule 6: an abort is refused: %v", err)
		} else if abort && (err == nil) != (blind == nil) {
			return fmt.Sprintf("rule 13: an abort depends on fresh caches: %v, %v", err, blind)
		} else if !abort && fresh.Action != nil && blind == nil {
			return fmt.Sprintf("rule 13: a %T is accepted by a stale cache", i)
		}
	}
	return w.breachOfStaleRoutes(s)
}

// restsOnPods reports whether a write follows from the present pods of a workload, and takes something from them or gives them requests.
func restsOnPods(o Observation, action Action) bool {
	switch a := action.(type) {
	case RepairCanary, HandOver:
		return true
	case LabelServing:
		return a.Serves
	case SetTraffic:
		return a.Desired.HandedOver || !a.Desired.Prepared && o.Traffic.Look(a.Desired).Write.Verb != traffic.Delete && o.Traffic.Facts().Isolated
	}
	return false
}

// breachOfStaleRoutes returns which requests the canary gets by a stale cache once the host asks for a mirror and a header route, or "".
func (w *world) breachOfStaleRoutes(s *state) string {
	o := w.observe(s)
	if o.Traffic == nil || o.release() == nil {
		return ""
	}
	o.Stale = []StaleCache{{Resource: "pods"}}
	next, rec := *o.release(), *o.Record
	next.Traffic = next.Traffic.With(func(t *record.Traffic) {
		t.Mirror = 10
		t.SetHeaderRoute(testers)
	})
	rec.Release, o.Record = &next, &rec
	d := reconcile(o)
	a, routes := d.Action.(SetTraffic)
	if !routes {
		return ""
	}
	after, err := model.Objects{World: o.Traffic.World}.Next(o.Traffic.Setup, a.Desired)
	switch {
	case err != nil:
		return err.Error()
	case addedRoutes(after.World) > addedRoutes(o.Traffic.World):
		return "rule 13: a mirror or a header route by a stale cache: " + a.String()
	}
	return ""
}

// addedRoutes counts the mirrors and the rules of all routes.
func addedRoutes(w traffic.World) (n int) {
	n = ruleCount(w)
	for _, r := range w.Routes {
		n += strings.Count(encoded(r.Object["spec"]), "RequestMirror")
	}
	return n
}

// ruleCount counts the rules of all routes.
func ruleCount(w traffic.World) (n int) {
	for _, r := range w.Routes {
		rules, _, _ := unstructured.NestedSlice(r.Object, "spec", "rules")
		n += len(rules)
	}
	return n
}

// unanswered reports whether a header leads to a canary Service without endpoints, while the stable one has some.
func (w *world) unanswered(s *state) bool {
	if !w.headers || !w.byHeader(s) {
		return false
	}
	now := w.of[s.objects].selectors
	return w.endpoints(s, s.selectors, false) != 0 && (w.endpoints(s, s.selectors, true) == 0 || w.endpoints(s, now, true) == 0)
}

// starved reports whether a step takes the endpoints of a side that gets requests, or moves requests to a side without, although the other
// side has some.
func (w *world) starved(before, after *state) bool {
	if !w.routed || after.wanted == 0 || w.allowed(before) >= int(before.own.replicas) {
		return false
	}
	was, _ := w.void(before)
	is, alone := w.void(after)
	return is&^was&alone != 0
}

// void returns the sides, as bits, that get a share of the requests and have no endpoint, and those besides which the other side has some.
func (w *world) void(s *state) (void, alone int) {
	for _, share := range w.eachShare(s) {
		for _, selectors := range []uint8{w.of[s.objects].selectors, s.selectors} {
			stable, canary := w.endpoints(s, selectors, false), w.endpoints(s, selectors, true)
			if share < 100 && stable == 0 {
				void |= 1
			}
			if share > 0 && canary == 0 {
				void |= 2
			}
			if canary != 0 {
				alone |= 1
			}
			if stable != 0 {
				alone |= 2
			}
		}
	}
	return void, alone
}

// unsettled returns what is wrong with a state in which nothing happens any more, or "" if there is nothing.
func (w *world) unsettled(s *state, d Decision) string {
	final := d.State == pb.State_STATE_COMPLETED || d.State == pb.State_STATE_ROLLED_BACK || d.State == pb.State_STATE_NOTHING_TO_RELEASE
	switch {
	case s.over && s.added.replicas < s.wanted && !s.added.byHand: // the number may be lost with the record
		return fmt.Sprintf("a workload of %d groups is handed over as one of %d", s.wanted, s.added.replicas)
	case s.over:
		return ""
	case w.lostPace(s):
		is, own := Saved(w.observe(s)), w.rollings.values[s.pace]
		return fmt.Sprintf("rule 7: the user's own maxUnavailable %s and maxSurge %s became %s and %s", &own.MaxUnavailable, &own.MaxSurge, &is.MaxUnavailable, &is.MaxSurge)
	case w.misrouted(s):
		return fmt.Sprintf("rule 2: the requests stay where %d groups are missing in %s, %s: %s", w.shortage(s), d.State, d.Reason, d.Message)
	case w.unreturned(s) && !forUser(d.Reason):
		return fmt.Sprintf("rule 8: a rollback does not return the requests in %s, %s: %s", d.State, d.Reason, d.Message)
	case w.unanswered(s) && s.refuses == 0 && !s.gatewayDown && !s.lwsDown:
		return fmt.Sprintf("rule 2: a header leads to no group in %s, %s: %s", d.State, d.Reason, d.Message)
	case d.Reason == ReasonInvariantViolation:
		return d.Message
	case s.refused && d.Action != nil:
		return "" // the engine reports what the API server says
	case d.State == pb.State_STATE_FAILED && d.Message == "", d.State != pb.State_STATE_FAILED && !atRestIn(d.State):
		return fmt.Sprintf("rule 8: it waits for ever in %s, %s: %s", d.State, d.Reason, d.Message)
	case d.State == pb.State_STATE_FAILED && !w.harmed(s) && !forUser(d.Reason):
		return fmt.Sprintf("it fails with %s, and nothing is wrong: %s", d.Reason, d.Message)
	case d.State == pb.State_STATE_FAILED && !forUser(d.Reason) && w.unexplained(s, d) != "":
		return fmt.Sprintf("rule 8: it fails with %s and does not name %s: %s", d.Reason, w.unexplained(s, d), d.Message)
	case w.abandons(s, d):
		return fmt.Sprintf("rule 11: groups stay at a revision that is no longer released in %s, %s: %s", d.State, d.Reason, d.Message)
	case w.unheld(s) && s.refuses == 0 && !s.lwsDown:
		return fmt.Sprintf("rule 11: the hold stays overwritten in %s, %s: %s", d.State, d.Reason, d.Message)
	case s.unnamed: // nothing says which routes the release had
	case !final && (s.record != 0 || w.harmed(s) && (d.State == pb.State_STATE_FAILED || d.Reason == ReasonCapacityBelowShare || w.serves(&s.added))) || s.lwsDown || s.gatewayDown:
	case s.added.exists && !s.added.leftover():
		return fmt.Sprintf("rule 7: %s with an added set", d.State)
	case w.routed && s.objects != w.untouched:
		return fmt.Sprintf("rule 7: %s with objects %s", d.State, encoded(w.worlds.values[s.objects].World))
	case s.record != 0 && !record.SameRolling(w.rollingOf(&s.own), record.Hold()):
		return fmt.Sprintf("rule 7: %s without the hold", d.State)
	}
	return ""
}

// unheld reports whether LeaderWorkerSet may roll more groups than the batches of a release ask for, or to a template that a rollback withdraws.
func (w *world) unheld(s *state) bool {
	r := w.release(s)
	if r == nil {
		return false
	}
	is, last := w.rollingOf(&s.own), w.recordOf(s).LastSet()
	switch {
	case r.Phase == record.Progressing && w.inPlace():
		return ptr.Deref(is.Partition, 0) < ptr.Deref(last.Partition, 0)
	case r.Phase == record.Progressing:
		return !isHold(is) || !record.SameRolling(is, last)
	case r.Phase == record.RollingBack:
		// From none LeaderWorkerSet starts the template in the spec, whatever the hold.
		return s.own.template != revisionOf(r.StableRevision) && s.own.leaders.exists && s.own.existing() > 0 && !isHold(is)
	}
	return false
}

// serves reports whether, without routes, a group of a set gets requests.
func (w *world) serves(s *lwset) bool { return !w.routed && s.ready() > 0 }

// lostPace reports whether the record says something else than the user's own configuration.
func (w *world) lostPace(s *state) bool {
	o := w.observe(s)
	return o.Record != nil && !s.succeeded && !record.SameRolling(record.Native(Saved(o)), w.rollings.values[s.pace])
}

// abandons reports whether, in place, a group stays at a revision that a release has left for another one. Restarts may not change it.
func (w *world) abandons(s *state, d Decision) bool {
	r := w.release(s)
	if !w.inPlace() || r == nil || r.Phase != record.Progressing || d.State == pb.State_STATE_FAILED || s.lwsDown || s.refuses != 0 {
		return false
	}
	known := []revision{0, revisionOf(r.StableRevision), revisionOf(r.UpdateRevision), revisionOf(r.RestartsExhausted)}
	return slices.ContainsFunc(s.own.groups[:s.own.replicas], func(m member) bool { return !slices.Contains(known, m.revision) })
}

// misrouted reports whether the stable side lacks fewer groups for all requests than both sides lack for their parts.
func (w *world) misrouted(s *state) bool {
	phase := w.phase(s)
	refused := s.refused && (s.refuses > 2 || // the write that would mend it, or the one before
		s.refuses == 1 && (w.inPlace() || w.restored(s)) || phase == record.Promoting || phase == record.HandingOver)
	if !w.routed || s.gatewayDown || s.lwsDown || refused {
		return false
	}
	now := w.shortage(s)
	stable := bits.OnesCount64(w.endpoints(s.lasting(), s.selectors, false))
	written, _ := w.share(s)
	return written > 0 && now > w.allowed(s) && int(s.own.replicas)-stable < now
}

// lasting returns the state without ready groups of a surge, which LeaderWorkerSet removes.
func (s *state) lasting() *state {
	out := *s
	for i := s.own.replicas; i < maxIndices; i++ {
		out.own.groups[i].ready = false
	}
	return &out
}

// restored reports whether a user has restored the stable template, whose rollback is not recorded yet.
func (w *world) restored(s *state) bool {
	r := w.release(s)
	return r != nil && r.Phase.Unfinished() && s.own.template == revisionOf(r.StableRevision)
}

// unreturned reports whether a rollback leaves requests with the canary although the stable side can carry them, as far as may be
// unavailable. With force, an added set without routes does not stay either.
func (w *world) unreturned(s *state) bool {
	cleans := w.phase(s) == record.CleaningUp
	if !cleans && !w.forced(s) || s.gatewayDown || s.lwsDown || s.refuses != 0 {
		return false
	}
	if !w.routed {
		return cleans && w.forced(s) && s.added.exists && !s.added.leftover()
	}
	written, _ := w.share(s)
	stable := bits.OnesCount64(w.endpoints(s, s.selectors, false))
	return written > 0 && stable > 0 && int(s.own.replicas)-stable <= w.allowed(s)
}

// unexplained returns what the message of a failure lacks: what is broken, or what to do, or "".
func (w *world) unexplained(s *state, d Decision) string {
	culprits := map[string]bool{
		"LeaderWorkerSet controller": s.lwsDown, "gateway": s.gatewayDown, "endpoint picker": s.pickerDown, "webhook": s.refuses != 0,
		"Scale or repair vllm": s.own.replicas < s.wanted, // its groups are lost with an old object
	}
	for at, set := range []*lwset{&s.own, &s.added} {
		for i, m := range set.groups {
			leader := leaderNames[[...]string{"vllm", addedName(s.added.carries)}[at]]
			if m.revision != 0 && (m.broken == m.revision || m.fault >= nodeLost || s.silent) {
				culprits[leader[i]] = true
			}
		}
	}
	named := false
	for name, broken := range culprits {
		named = named || broken && strings.Contains(d.Message, name)
	}
	switch {
	case !named && slices.Contains(slices.Collect(maps.Values(culprits)), true):
		return "a culprit"
	case !strings.Contains(d.Message, "The release continues by itself once "), strings.Contains(d.Message, "See the driver's log"):
		return "a remedy"
	}
	return ""
}

// forUser reports whether only a person can end a failure, although nothing is broken.
func forUser(reason string) bool {
	switch reason {
	case ReasonMixedRevisions, ReasonScaledToZero, ReasonUnreleased, ReasonStableShrunk, ReasonTemplateRefused:
		return true
	}
	return false
}

// harmed reports whether something is broken that does not heal by itself.
func (w *world) harmed(s *state) bool {
	for _, set := range []*lwset{&s.own, &s.added} {
		for i := range set.groups {
			if m := set.groups[i]; m.revision != 0 && (m.broken == m.revision || m.fault >= nodeLost) {
				return true
			}
		}
	}
	// A record that is lost in a handover takes the number of the user's own groups with it.
	// A user may scale it below a second set that has the requests.
	lost := (s.own.replicas < s.wanted || w.routed && s.own.replicas < s.added.replicas && w.requests(&s.added) > int(s.own.replicas)) &&
		w.phase(s) != record.HandingOver
	// Another client may lead the stable Service to updated groups, which carry requests that the others can't.
	r := w.release(s)
	reverted := w.routed && w.inPlace() && r != nil && !r.SplitEnded && w.endpoints(s, s.selectors, false)&w.endpoints(s, s.selectors, true) != 0
	return lost || reverted || s.silent || s.lwsDown || s.gatewayDown || s.pickerDown || s.refuses != 0
}
