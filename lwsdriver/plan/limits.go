// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"

	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// The limits are what may be true next, the same for every style and phase: the safety rules about requests and capacity. Whatever the
// release wants, a write that would exceed one is withheld, and the decision says what it waits for. So a style or a phase can't forget
// a rule: it never sees one.

// limits hold always, releaseLimits during a release. Both are in the order of the rules.
var (
	limits        = []func(Observation, Action) *Decision{limitStale, limitShares, limitRemoval, limitService}
	releaseLimits = append(slices.Clip(limits), limitRoll, limitRestart)
)

// withinLimits withholds a write that would exceed a limit.
func withinLimits(o Observation, d Decision) Decision {
	if d.Action == nil || o.Stable.Deleting || o.Gone {
		return d
	}
	due := limits
	if o.release() != nil {
		due = releaseLimits
	}
	for _, limit := range due {
		if wait := limit(o, d.Action); wait != nil {
			wait.State, wait.Progress = d.State, d.Progress
			return *wait
		}
	}
	return d
}

// limitStale withholds promotions, removals, and larger shares, mirrors and header routes that rest on what the API server does not
// confirm. What protects goes on, such as fewer requests for the updated groups, the hold, and the way back.
func limitStale(o Observation, action Action) *Decision {
	d := o.whatIsUnknown()
	if d == nil || !o.needsFresh(action) {
		return nil
	}
	d.Message = fmt.Sprintf("%s. This waits for it: %s", d.Message, action)
	return d
}

// needsFresh reports whether a write rests on the present state of pods, workloads or endpoints.
func (o Observation) needsFresh(action Action) bool {
	switch a := action.(type) {
	case SetStable:
		return o.stableNeedsFresh(a)
	case SetTraffic:
		if a.Desired.HandedOver || o.Traffic.Look(a.Desired).Write.Grows {
			return true
		}
		// Lifting the isolation mixes both sides, so both have to be known.
		staysApart := a.Desired.Isolated || a.Desired.Prepared || a.Desired.Weight > 0
		return o.Traffic.Facts().Isolated && !staysApart
	case ScaleCanary:
		return a.Replicas < o.canary().Replicas
	case LabelServing:
		return a.Serves || o.replacesUnits() && o.unsizedRole() != "" // which groups leave follows from how many there are to be
	case SetBounds:
		return o.lowersBounds(a.Bounds)
	case ScaleChild:
		return slices.ContainsFunc(o.Children, func(c Child) bool { return c.Name == a.Name && a.Replicas < c.Replicas })
	case RestartGroup, DeleteCanary, RemoveFinalizer, RepairCanary, HandOver:
		return true
	case RemoveRecord:
		return len(o.Stale) > 0
	default:
		return false
	}
}

// stableNeedsFresh is needsFresh for a write of the user's workload.
func (o Observation) stableNeedsFresh(a SetStable) bool {
	from, to := phaseOf(o.release()), phaseOf(a.Record.Release)
	replaces := a.Rolling != nil && o.lowersPartition(*a.Rolling)
	switch to {
	// An abort is always accepted, since it lets LWS replace no group.
	case record.RollingBack:
		return replaces
	// The rollback would be declared complete, and the canary deleted, by groups that may be gone.
	case record.CleaningUp:
		return from == record.RollingBack
	// Each of these phases lets groups go that the one before has kept.
	case record.Promoting, record.Standby, record.HandingOver, record.Promoted:
		if from != to {
			return true
		}
	default:
	}
	scalesDown := a.Replicas != nil && *a.Replicas < o.Stable.Replicas
	return scalesDown || replaces
}

// phaseOf returns the phase of a release, "" without one.
func phaseOf(r *record.Release) record.Phase {
	if r == nil {
		return ""
	}
	return r.Phase
}

// whatIsUnknown returns, as a decision, what may be other than it was observed: a cache that is stale, or the number of groups of a role.
// It returns nil if everything is known.
func (o Observation) whatIsUnknown() *Decision {
	if why := o.unsizedRole(); why != "" {
		return &Decision{Reason: ReasonRoleUnsized, Message: why, Remedy: unsizedRemedy}
	}
	if len(o.Stale) == 0 {
		return nil
	}
	s := o.Stale[0]
	return &Decision{
		Reason: ReasonCacheStale, Wait: WaitCache, Remedy: staleRemedy,
		Message: fmt.Sprintf("the cache of %s is not confirmed since %s (%s), so what it holds may be outdated", s.Resource, clockTime(s.Since), s.Why),
	}
}

// unsizedRole returns why the number of groups of a role is unknown, "" if all are known.
func (o Observation) unsizedRole() string {
	for _, r := range o.Roles {
		if r.Unsized != "" {
			return fmt.Sprintf("how many groups role %s is to have is unknown: %s", r.Name, r.Unsized)
		}
	}
	return ""
}

// What to do about a cache that stays stale, and about a role without a number of groups.
const (
	staleRemedy   = "Check that the API server answers the driver's watches: see its log, and the metric lockstep_cache_stale"
	unsizedRemedy = "Check that its DisaggregatedSetRoleScaler has that number, that the controller of LWS runs, in version v0.10.0 or later, and that " +
		"the driver may list disaggregatedsetrolescalers"
)

// awaitFresh turns a batch that is ready, or only waits for its groups, into one that is verified, while a cache is stale or the number of
// groups of a role is unknown.
func awaitFresh(o Observation, d Decision) Decision {
	u := o.whatIsUnknown()
	waits := d.State == pb.State_STATE_UPGRADING && d.Action == nil
	if u == nil || d.State != pb.State_STATE_READY && !waits {
		return d
	}
	d.Message = fmt.Sprintf("%s, and no batch counts as ready; as far as is known, %s", u.Message, d.Message)
	d.State, d.Reason, d.Wait, d.Remedy = pb.State_STATE_VERIFYING, u.Reason, u.Wait, u.Remedy
	return d
}

// checkFresh refuses, temporarily, an intent whose first write rests on a stale cache.
func checkFresh(o Observation, action Action) error {
	u := o.whatIsUnknown()
	if action == nil || u == nil || !o.needsFresh(action) {
		return nil
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED,
		"%s: this is accepted once it is known, and an abort is accepted now. %s", u.Message, u.Remedy)
}

// limitShares: a side gets no larger share of the requests than its groups can carry. A share that is too large already may
// move: to the side that lacks fewer groups.
func limitShares(o Observation, action Action) *Decision {
	a, ok := action.(SetTraffic)
	if !ok {
		return nil
	}
	write := o.Traffic.Look(a.Desired).Write
	if !write.Pins && !write.Moves {
		return nil
	}
	f, weight := o.carrierFacts(), a.Desired.Weight
	lacked := o.lackingGroups(f, f.Weight)
	if write.Pins {
		if !a.Desired.HandedOver && !o.Stable.Observed {
			return ptr.To(waitForLWS(o)) // until it has observed the spec, it may remove groups that the Service is to select
		}
		// The share stays, and other groups come behind the stable Service.
		weight = f.Weight
		f.StableEndpoints, f.StablePods = o.pinnedLeaders(a.Desired), nil
	}
	r := o.release()
	returns := weight < f.Weight // requests return to the stable side
	// A hold that LWS has not observed yet lets it go on replacing groups, to which requests would return.
	held := !o.inPlace() && r != nil && r.Phase == record.Progressing // it has held since the release began
	mayStay := f.CanaryEndpoints > 0 || f.CanaryBroken != ""          // such groups are not lost
	if returns && mayStay && (!held || o.lackingGroups(f, weight) >= lacked) {
		if d := o.stopRoll(); d != nil {
			return d
		}
	}
	nothingServes := returns && f.CanaryEndpoints == 0 // where they come from
	if nothingServes || !o.lacksTooMany(f, weight, lacked) {
		return nil
	}
	if o.forced() && returns && f.StableEndpoints > 0 {
		return nil // force gives requests back to the stable side as it is, but not to one without endpoints
	}
	carrier := "the canary"
	if r != nil {
		carrier = "revision " + r.UpdateRevision
	}
	what, force := fmt.Sprintf("%d %% of the requests stay with %s, and do not become %d %%", f.Weight, carrier, weight), ""
	if write.Pins {
		what = fmt.Sprintf("%s keeps its selector", write.Key)
	}
	if o.rollsBack() && f.StableEndpoints > 0 {
		force = ". To return them all the same, run " + o.forcedAbort()
	}
	return &Decision{
		Reason: ReasonCapacityBelowShare, Wait: WaitTraffic,
		Message: fmt.Sprintf("%s: all requests need %d groups, %d of the stable side can receive some and %d of the other one%s%s",
			what, o.neededGroups(), f.StableEndpoints, f.CanaryEndpoints, o.describeUnready(o.Stable.All()), force),
		Remedy: fmt.Sprintf("Scale or repair %s", o.Stable.Name),
	}
}

// stopRoll has LWS stop before requests return to groups that it may replace all at once: it lowers its partition in time, and raises it
// only for the hold. Nil means that LWS may take no more than may be unavailable.
func (o Observation) stopRoll() *Decision {
	if !o.Stable.hasOtherRevisions(0) {
		return nil // LWS has nothing to replace
	}
	switch {
	case o.Record == nil && o.Stable.hasOtherRevisions(int(ptr.Deref(o.Stable.Rolling.Partition, 0))):
		return o.awaitLWS(ReasonRolling, "requests return to %s once LeaderWorkerSet has replaced its groups: it has no record, so nothing else bounds how many at a time%s",
			o.Stable.Name, o.describeUnready(o.Stable.All()))
	case o.rollsTooFast():
		const why = "hold, since requests return to groups that LeaderWorkerSet may replace all at once"
		return ptr.To(writeStable(SetStable{Record: *o.Record, Rolling: hold(), Why: why}, ReasonRolling))
	case !o.Stable.Observed:
		return o.awaitLWS(ReasonRolling, "requests return to %s once LeaderWorkerSet has observed how many of its groups may be unavailable", o.Stable.Name)
	}
	return nil
}

// rollsTooFast reports whether LWS may replace more groups at a time than the user's own configuration allows.
func (o Observation) rollsTooFast() bool {
	if o.Record == nil || o.inPlace() || isHold(o.Stable.Rolling) {
		return false
	}
	n := o.Stable.Replicas
	unavailable, allowed := o.Stable.Rolling.MaxUnavailable, Pace(Saved(o), n).MaxUnavailable
	return scaledValue(unavailable, n, false) > scaledValue(allowed, n, false)
}

// carrierFacts returns the facts of the routing with no endpoint of a group that can't carry requests: its leader is ready and the rest of it is
// not, LWS deletes it, since there are more than replicas, or requests to all groups of its side fail.
func (o Observation) carrierFacts() traffic.Facts {
	f := o.Traffic.Facts()
	for _, w := range o.Workloads() {
		idle := func(leader string) bool {
			return slices.ContainsFunc(w.Groups, func(g Group) bool {
				return g.Leader == leader && (!g.Ready || w.Name == o.Stable.Name && g.Index >= w.Replicas)
			})
		}
		f.StablePods, f.CanaryPods = slices.DeleteFunc(slices.Clone(f.StablePods), idle), slices.DeleteFunc(slices.Clone(f.CanaryPods), idle)
	}
	if f.CanaryBroken != "" {
		f.CanaryPods = nil
	}
	f.StableEndpoints, f.CanaryEndpoints = len(f.StablePods), len(f.CanaryPods)
	return f
}

// pinnedLeaders returns how many ready leaders the stable Service selects once it is pinned. Groups above replicas leave.
func (o Observation) pinnedLeaders(d traffic.Desired) int {
	w := &o.Stable
	if c := o.canary(); d.HandedOver && c != nil {
		w = c
	}
	return w.count(func(g Group) bool {
		excluded := o.inPlace() && !o.staysStable(g) || o.replacesUnits() && !g.Serving
		return g.mayServe(w.Replicas) && !excluded
	})
}

// neededGroups returns how many groups carry all requests. In a handover the user's own are scaled to 0, and the stable Service leads to
// the second set, also if the record is lost.
func (o Observation) neededGroups() int {
	n := o.batchReplicas()
	for _, w := range o.Added {
		if o.Traffic != nil && slices.ContainsFunc(w.Groups, o.receivesRequests) {
			n = max(n, w.Replicas)
		}
	}
	return n
}

// lackingGroups returns how many groups the two sides would lack for their requests at a weight. A group is counted once, though
// both parts may be rounded up and both Services may select it. A host may ask for a larger share than the groups are of all: then these are enough.
func (o Observation) lackingGroups(f traffic.Facts, weight int) int {
	n := o.neededGroups()
	canary := groupsFor(weight, n)
	if asked := o.requestedGroups(); asked > 0 && !o.movesAllRequests() {
		requested := o.release().Traffic.Weight
		canary = min(canary, (asked*weight+requested-1)/requested)
	}
	stable := n - n*weight/100
	// In place, before the isolation, one leader is behind both Services.
	apart := slices.DeleteFunc(slices.Clone(f.StablePods), func(pod string) bool { return slices.Contains(f.CanaryPods, pod) })
	endpoints := f.StableEndpoints - len(f.StablePods) + len(apart) + f.CanaryEndpoints
	lacks := max(stable-f.StableEndpoints, 0) + max(canary-f.CanaryEndpoints, 0)
	lacks = max(lacks, stable+canary-endpoints)
	if n*weight%100 != 0 {
		lacks-- // both parts are rounded up, which counts one group twice
	}
	return lacks
}

// lacksTooMany reports whether a weight is too much for the two sides: they lack more groups than before and than they may, or requests go to a
// stable side without groups.
func (o Observation) lacksTooMany(f traffic.Facts, weight, lacked int) bool {
	stableEmpty := f.StableEndpoints == 0 && weight < 100 && o.neededGroups() > 0
	if stableEmpty && weight < f.Weight && f.CanaryEndpoints > 0 {
		return true // they would leave groups that serve
	}
	lacks := o.lackingGroups(f, weight)
	return lacks > lacked && (stableEmpty || lacks > o.mayLack())
}

// mayLack returns how many groups may be missing: as many as may be unavailable, or as the policy tolerates.
func (o Observation) mayLack() int {
	tolerated := o.Policy.Threshold(o.neededGroups())
	switch {
	case o.Record == nil:
		return tolerated // what the user allows went with the record
	case o.replacesUnits():
		return max(o.shiftLacks(), tolerated)
	case o.inPlace() || o.rollsBack():
		return max(o.mayBeUnavailable(), tolerated)
	}
	return max(o.userUnavailable(), tolerated)
}

// limitRemoval: without a traffic policy, the second set of a handover gets requests as soon as it is ready, so it is removed only once the
// user's own groups serve. Without a record any may be one. With a policy, limitShares has moved all requests before. New units of a
// DisaggregatedSet may stand in the place of old ones, which do not come back without a record.
func limitRemoval(o Observation, action Action) *Decision {
	var name string
	switch a := action.(type) {
	case DeleteCanary:
		name = a.Name
	case RemoveFinalizer:
		name = a.Name
	}
	i := slices.IndexFunc(o.Added, func(w Workload) bool { return w.Name == name })
	standsIn := o.Record == nil && o.hasRoles()
	if o.Traffic == nil {
		standsIn = o.Record == nil || o.hasRoles() || o.handsOver()
	}
	if i < 0 || o.forced() || !standsIn || o.Added[i].servingGroups(o.Added[i].Replicas) == 0 {
		return nil
	}
	needed, serving := o.neededGroups(), 0
	// Until LWS has observed the spec, it may remove the groups that serve.
	if o.Stable.Observed {
		serving = o.Stable.servingGroups(o.Stable.Replicas)
		if o.hasRoles() {
			serving = min(serving, o.stayingUnits()) // the others are ready until LWS removes them
		}
	}
	if (serving > 0 || needed == 0) && needed-serving <= o.mayLack() {
		return nil
	}
	d := &Decision{
		Reason:  ReasonCapacityBelowShare,
		Message: fmt.Sprintf("the groups of %s serve, and stay until those of %s do%s", name, o.Stable.Name, o.describeUnready(o.Stable.All())),
		Remedy:  "Scale or repair " + o.Stable.Name,
	}
	if o.rollsBack() {
		d.Remedy += fmt.Sprintf(", or run %s to remove them all the same", o.forcedAbort())
	}
	return d
}

// limitService: the canary's Service and pool are deleted only once every gateway has accepted routes that lead there no more.
func limitService(o Observation, action Action) *Decision {
	a, ok := action.(SetTraffic)
	if !ok || a.Desired.Prepared {
		return nil
	}
	v := o.Traffic.Look(a.Desired)
	if v.Withdrawn || v.Write.Verb != traffic.Delete {
		return nil
	}
	return &Decision{
		Reason: traffic.ReasonRouteNotObserved, Wait: WaitTraffic,
		Message: fmt.Sprintf("%s stays until every gateway has observed that no route leads there", v.Write.Key),
	}
}

// limitRoll: LWS may replace a group only once no restart by a driver is in flight, so that every group exists, and every ready group is
// able to receive requests: LWS counts a ready group as available, whether or not it is being deleted and the Service leads to it.
func limitRoll(o Observation, action Action) *Decision {
	a, ok := action.(SetStable)
	if !ok || a.Rolling == nil || !o.lowersPartition(*a.Rolling) {
		return nil
	}
	if from := int(ptr.Deref(a.Rolling.Partition, 0)); len(o.Stable.existingFrom(from)) == 0 {
		return nil // there is none to replace
	}
	for g := range o.Stable.Wanted(0) {
		if missing := g.Revision == "" || g.TerminatingReady || g.Terminating && g.Restarts > 0; !missing {
			continue
		}
		since := later(later(g.LostAt, o.release().PhaseAt), o.Waiting.Since)
		if o.Waiting.Since.IsZero() || !o.isOverdue(since) {
			return &Decision{
				Reason: ReasonRestarting, Recheck: max(since.Add(o.progressDeadline()).Sub(o.Now), 0),
				Message: fmt.Sprintf("LeaderWorkerSet may update groups once group %d (%s) exists again", g.Index, g.Leader),
			}
		}
	}
	if o.Traffic == nil {
		return nil
	}
	if err := o.Traffic.CheckTemplate(); err != nil && !o.rollsBack() {
		return &Decision{
			Reason: traffic.ReasonEndpointsNotFollowing, Wait: WaitTraffic, Remedy: "Have the Service or pool select the leaders of both templates",
			Message: "LeaderWorkerSet may update groups once they can receive requests: " + drivererr.ProblemOf(err).Message,
		}
	}
	f := o.Traffic.Facts()
	if f.Weight == 100 {
		return nil // the groups get no requests
	}
	apart := o.inPlace() && f.Isolated // the Service selects no updated group
	for _, g := range o.Stable.Groups {
		if g.Ready && g.Index < o.Stable.Replicas && !slices.Contains(f.StablePods, g.Leader) && (!apart || o.staysStable(g)) {
			return &Decision{
				Reason: traffic.ReasonEndpointsNotFollowing, Wait: WaitTraffic,
				Message: fmt.Sprintf("LeaderWorkerSet may update groups once the Service leads to every ready group: it has no endpoint for pod %s yet", g.Leader),
			}
		}
	}
	return nil
}

// limitRestart: the driver restarts a group only while LWS is observed not to roll. `nextRestart` has how many at a time.
func limitRestart(o Observation, action Action) *Decision {
	a, ok := action.(RestartGroup)
	if !ok || isHold(o.Stable.Rolling) && o.Stable.Observed {
		return nil
	}
	return o.awaitLWS(ReasonRestarting, "the group of %s is restarted once LeaderWorkerSet has observed the hold on %s", a.Leader, o.Stable.Name)
}
