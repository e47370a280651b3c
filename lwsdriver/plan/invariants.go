// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"

	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// checkObservation checks what holds for every observation.
func checkObservation(o Observation) error {
	if o.Gone {
		return nil
	}
	if o.Stable.Replicas < 0 || o.Stable.Size < 1 {
		return fmt.Errorf("%s has %d replicas of size %d", o.Stable.Name, o.Stable.Replicas, o.Stable.Size)
	}
	for _, w := range o.Added {
		if w.Name == o.Stable.Name {
			return fmt.Errorf("%s is added to itself", w.Name)
		}
	}
	return nil
}

// checkDecision checks the safety rules that a single decision can break.
func checkDecision(o Observation, i Intent, d Decision) error {
	if err := errors.Join(checkRequested(o, i, d.Action), checkLeftToNewer(o, i, d.Action),
		checkAutoscalers(o, d.Action), checkHandover(o, d.Action)); err != nil {
		return err
	}
	if o.Identity.AddedTo != "" && d.Action != nil {
		return errors.New("what a release added is driven as a workload of its own")
	}
	switch a := d.Action.(type) {
	case CreateCanary:
		if o.inPlace() {
			return errors.New("a canary is created for a release in place")
		}
		if len(o.Added) > 0 {
			return errors.New("a second canary is created")
		}
		return errors.Join(checkReplicas(o, a.Replicas), checkIsolation(o), checkLeftovers(o, a))
	case ScaleCanary:
		if o.handingOver() {
			return nil // it is no longer isolated, and checkHandover checks the number
		}
		switch c := o.canary(); {
		case a.Replicas == c.Replicas:
			return nil // only the target changes; the loop repairs replicas that were edited
		case a.Replicas < c.Replicas:
			return checkReplicas(o, a.Replicas)
		}
		return errors.Join(checkReplicas(o, a.Replicas), checkIsolation(o))
	case DeleteCanary, RemoveFinalizer:
		return errors.Join(checkDeletion(o), checkWithdrawn(o))
	case SetStable:
		return errors.Join(checkSetStable(o, i, a), checkSplit(o, a))
	case SetTraffic:
		return checkShare(o, a)
	case RestartGroup:
		return checkRestart(o, a)
	case DeleteRevision:
		if o.inUse(a.Revision) {
			return fmt.Errorf("revision %s is deleted from the history while in use", a.Revision)
		}
	}
	return nil
}

// checkRequested: some writes need an intent, now or on record.
func checkRequested(o Observation, i Intent, action Action) error {
	switch a := action.(type) {
	case RemoveRecord:
		if _, ok := i.(Disown); !ok {
			return errors.New("the record is removed without a Disown")
		}
	case RestoreTemplate:
		_, undo := i.(Undo)
		back := o.rollsBack() && a.Revision == o.release().StableRevision
		if !undo && !back {
			return fmt.Errorf("the template of revision %s is restored without an Undo or a rollback to it", a.Revision)
		}
	}
	return nil
}

// checkRestart: a group is restarted only if that changes its revision, and no more at a time than the user allows.
func checkRestart(o Observation, a RestartGroup) error {
	if o.Traffic != nil {
		if weight := o.Traffic.Facts().Weight; weight > 0 && o.inPlace() {
			return fmt.Errorf("a group is restarted while updated ones get %d %% of the requests", weight)
		}
	}
	for _, g := range o.groupsOffRevision() {
		switch {
		case g.Leader != a.Leader:
		case g.mayCarry() && o.unavailableBut(g) >= o.mayBeUnavailable():
			return fmt.Errorf("group %d is restarted while %d others are unavailable", g.Index, o.unavailableBut(g))
		default:
			return nil
		}
	}
	return fmt.Errorf("the group of %s is restarted, though it is at the expected revision", a.Leader)
}

func checkReplicas(o Observation, n int) error {
	if n < 0 || n > max(o.batchReplicas(), o.canaryCapacity()) {
		return fmt.Errorf("a canary of %d groups for a workload of %d", n, o.batchReplicas())
	}
	return nil
}

// checkIsolation: canary leaders never receive requests through the stable Service.
func checkIsolation(o Observation) error {
	if o.Traffic != nil && !o.Traffic.Facts().Isolated {
		return errors.New("canary groups are created before the stable Service is isolated")
	}
	return nil
}

// checkWithdrawn: canary groups are not deleted while a route sends requests to them.
func checkWithdrawn(o Observation) error {
	if o.Traffic == nil || o.Stable.Deleting || o.Gone {
		return nil
	}
	if weight := o.Traffic.Facts().Weight; weight > 0 {
		return fmt.Errorf("canary groups are deleted while they get %d %% of the requests", weight)
	}
	return nil
}

// checkDeletion: while batches run, only a canary of another template, or one that is being deleted already, may be
// removed. While LWS rolls the stable workload, the canary stays.
func checkDeletion(o Observation) error {
	if o.Stable.Deleting || o.Record == nil || o.Record.Release == nil {
		return nil
	}
	r, c := o.Record.Release, o.canary()
	if o.shiftsBack() && (c == nil || c.Replicas == 0) {
		return nil
	}
	switch r.Phase {
	case record.Promoting, record.Standby, record.HandingOver, record.RollingBack:
		if !o.completesSecondSet() || c != nil && !c.Deleting {
			return errors.New("canary groups are deleted while the stable workload rolls")
		}
	case record.Progressing:
		if !o.inPlace() && c != nil && !c.Deleting && r.UpdateRevision == o.Stable.Revision && len(o.Added) == 1 {
			return errors.New("canary groups are deleted in mid-release")
		}
	default:
	}
	return nil
}

// checkSetStable: the hold is released only by a promotion, by its rollback, and for the groups of a batch in place; and
// only Promote begins a promotion.
func checkSetStable(o Observation, i Intent, a SetStable) error {
	before, after := phaseOf(o.release()), phaseOf(a.Record.Release)
	_, asked := i.(Promote)
	if after == record.Promoting && before != record.Promoting && before != record.HandingOver && !asked {
		return errors.New("a promotion begins without a Promote")
	}
	if a.RestoreTemplate {
		if after != record.RollingBack || a.Record.Release.StableTemplate == nil {
			return errors.New("a template is restored that is not the stable one")
		}
		return nil
	}
	if a.Rolling == nil || isHold(*a.Rolling) {
		return nil
	}
	switch {
	case after == record.RollingBack && o.Stable.Revision != o.Record.Release.StableRevision:
		return errors.New("a rollback to a template that is not the stable one")
	case after == record.Progressing && o.inPlace():
		return checkPartition(o, a)
	case after != record.Promoting && after != record.RollingBack:
		return fmt.Errorf("the hold is released in phase %q", after)
	}
	return nil
}

// checkPartition: LWS may update the groups of the batch and no others, and add none.
func checkPartition(o Observation, a SetStable) error {
	groups := o.Stable.Replicas - int(ptr.Deref(a.Rolling.Partition, 0))
	switch planned := measureProgress(o).Planned; {
	case groups > planned:
		return fmt.Errorf("%d groups would be updated, %d are planned", groups, planned)
	case groups == o.Stable.Replicas && !a.SaveTemplate && a.Record.Release.StableTemplate == nil:
		return errors.New("the last stable group is replaced before its template is saved")
	}
	if scaledValue(a.Rolling.MaxSurge, o.Stable.Replicas, true) > 0 {
		return errors.New("a release in place surges")
	}
	return nil
}
