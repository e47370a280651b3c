// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"

	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// advancePartition lowers the partition to the target: LWS replaces the user's own groups from the highest index down,
// within the user's maxUnavailable.
func advancePartition(o Observation, s Progress) Decision {
	r := o.Record.Release
	if d := restartAbandoned(o, s); d != nil {
		return *d
	}
	// Once every group is updated, LWS deletes the stable revision, and the StatefulSet creates no group at that revision any more.
	last := s.Planned > 0 && s.Planned == o.Stable.Replicas && r.StableTemplate == nil
	want := o.partitionedRolling(Saved(o), s.Planned)
	due := last || !record.SameRolling(o.Stable.Rolling, want) || !record.SameRolling(lastSet(o), want)
	v, d := routeInPlace(o)
	if d == nil && (o.Target() == nil || due && o.lowersPartition(want)) {
		d = o.awaitSplit(v)
	}
	// Fewer groups to update is a write that protects, and waits for no route.
	if due && (d == nil || !o.lowersPartition(want)) {
		why := fmt.Sprintf("have LeaderWorkerSet update %d of %d groups", s.Planned, o.Stable.Replicas)
		return writeStable(SetStable{Record: *o.Record, Rolling: &want, SaveTemplate: last, Why: why}, ReasonScaling)
	}
	if d != nil {
		return *d
	}
	if o.Target() == nil {
		return Decision{
			State: pb.State_STATE_HOLDING, Reason: ReasonNoBatch,
			Message: fmt.Sprintf("%s is held at revision %s; the host starts the first batch", o.Stable.Name, r.StableRevision),
		}
	}
	return judgeBatch(o, s, v, o.Stable.Wanted(o.Stable.Replicas-s.Planned))
}

// stopBatch sets the hold before LWS rolls to a template that is not released, where no admission policy has, and restores the partition of a
// batch. Nil means that LWS may continue.
func stopBatch(o Observation) *Decision {
	r := o.Record.Release
	if o.Stable.Revision == r.UpdateRevision && r.UpdateRevision != "" {
		return restorePartition(o)
	}
	a := repairHold(o)
	if a == nil {
		return nil
	}
	a.Why = "the template changed: hold"
	return ptr.To(writeStable(*a, ReasonNewRevision))
}

// restorePartition restores the partition that another client has lowered, so that LWS rolls no group that the driver has not asked for. Nil
// means that none has.
func restorePartition(o Observation) *Decision {
	last := o.Record.LastSet()
	next := Pace(last, o.Stable.Replicas)
	if next.Partition = last.Partition; ptr.Deref(o.Stable.Rolling.Partition, 0) >= ptr.Deref(next.Partition, 0) {
		return nil
	}
	if !o.rollsBack() { // the workload may have been scaled up
		next.Partition = ptr.To(max(ptr.Deref(last.Partition, 0), int32(o.Stable.Replicas-o.plannedGroups()))) //nolint:gosec // a number of groups
	}
	return ptr.To(writeStable(SetStable{Record: *o.Record, Rolling: &next, Why: "restore the partition, which was changed"}, ReasonHoldDrifted))
}

// restartAbandoned restarts the groups of a revision that is no longer released at the stable one, before the release starts
// over. Nil means no such groups. Groups that restarts do not change stay until a batch reaches them; if no others exist,
// theirs has become the stable revision.
func restartAbandoned(o Observation, s Progress) *Decision {
	offRevision := o.abandonedGroups()
	if len(offRevision) == 0 {
		return nil
	}
	// The StatefulSet has completed their revision, and would recreate them at that revision for ever.
	if i := slices.IndexFunc(offRevision, restartsExhausted); i >= 0 {
		why := fmt.Sprintf("restarts leave groups at revision %s: they stay until a batch reaches them", offRevision[i].Revision)
		next := withRelease(o, func(r *record.Release) {
			r.RestartsExhausted, r.SplitEnded = offRevision[i].Revision, o.routesInPlace()
		})
		if len(o.Stable.distinctRevisions()) == 1 {
			why = fmt.Sprintf("every group serves revision %s: it becomes the stable revision", offRevision[i].Revision)
			next.Release.StableRevision, next.Release.StableTemplate = offRevision[i].Revision, nil
		}
		return ptr.To(writeStable(SetStable{Record: next, Rolling: hold(), Why: why}, ReasonNewRevision))
	}
	if a := repairHold(o); a != nil {
		return ptr.To(writeStable(*a, ReasonNewRevision))
	}
	if d := awaitWithdrawnInPlace(o); d != nil {
		return d
	}
	return ptr.To(restart(o, s, offRevision, ReasonNewRevision))
}

// abandonedGroups returns the groups of a revision that is neither the stable nor the update revision.
func (o Observation) abandonedGroups() []Group {
	r := o.Record.Release
	return o.groupsOffRevision(r.StableRevision, r.UpdateRevision, r.RestartsExhausted)
}

// partitionedRolling returns the configuration under which LWS updates the given number of groups, those of the highest indices,
// at the user's pace and without a surge. For 0 groups it is the hold, so that a scale-up creates stable groups.
func (o Observation) partitionedRolling(saved rolling, groups int) rolling {
	if groups <= 0 {
		return record.Hold()
	}
	next := o.rollingPace(saved)
	next.Partition = ptr.To(int32(max(o.Stable.Replicas-groups, 0))) //nolint:gosec // a number of groups
	return next
}
