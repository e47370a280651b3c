// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"

	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// checkObservation holds for everything that observe returns.
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

// checkDecision is the safety rules, as far as one decision can break them.
func checkDecision(o Observation, i Intent, d Decision) error {
	if err := errors.Join(checkRequested(i, d.Action), checkAutoscalers(o, d.Action), checkHandover(o, d.Action)); err != nil {
		return err
	}
	switch a := d.Action.(type) {
	case CreateCanary:
		if o.inPlace() {
			return errors.New("a canary for a release in place")
		}
		if len(o.Added) > 0 {
			return errors.New("never two canaries")
		}
		return errors.Join(checkReplicas(o, a.Replicas), checkFence(o))
	case ScaleCanary:
		if o.handingOver() {
			return nil // nothing is fenced from it any more, and checkAdoption sees to the number
		}
		switch c := o.canary(); {
		case c != nil && a.Replicas == c.Replicas:
			return nil // it only notes the target; if somebody scaled it, the loop puts it right
		case c != nil && a.Replicas < c.Replicas:
			return checkReplicas(o, a.Replicas)
		}
		return errors.Join(checkReplicas(o, a.Replicas), checkFence(o))
	case DeleteCanary, RemoveFinalizer:
		return errors.Join(checkRetire(o), checkWithdrawn(o))
	case SetStable:
		return errors.Join(checkSetStable(o, i, a), checkSplit(o, a))
	case RestartGroup:
		return checkRestart(o, a)
	case DeleteRevision:
		if o.needed(a.Revision) {
			return fmt.Errorf("revision %s would be dropped from the history, and is in use", a.Revision)
		}
	}
	return nil
}

// checkRequested: what only a caller may cause has a request for it.
func checkRequested(i Intent, action Action) error {
	switch a := action.(type) {
	case RemoveRecord:
		if _, ok := i.(Disown); !ok {
			return errors.New("a workload is given back that nothing disowned")
		}
	case RestoreTemplate:
		if _, ok := i.(Undo); !ok {
			return fmt.Errorf("the template of revision %s comes back without a request for it", a.Revision)
		}
	}
	return nil
}

// checkRestart: a group is restarted only where it comes back at another revision, and no more than the user allows. While
// LWS rolls to the stable template it sees to those that serve.
func checkRestart(o Observation, a RestartGroup) error {
	held, r := record.SameRolling(o.Stable.Rolling, record.Hold()), o.Record.Release
	if !held && (r.Phase != record.RollingBack || o.Stable.Revision != r.StableRevision) {
		return errors.New("a group is restarted without the hold")
	}
	if o.Traffic != nil {
		if weight := o.Traffic.Facts().Weight; weight > 0 && o.inPlace() {
			return fmt.Errorf("a group is restarted while updated ones get %d %% of the requests", weight)
		}
	}
	for _, g := range o.groupsOffRevision() {
		switch {
		case g.Leader != a.Leader:
		case g.Ready && !held:
			return fmt.Errorf("group %d is restarted while LeaderWorkerSet rolls", g.Index)
		case g.Ready && o.unavailableBut(g) >= o.mayBeUnavailable():
			return fmt.Errorf("group %d is restarted while %d others are unavailable", g.Index, o.unavailableBut(g))
		default:
			return nil
		}
	}
	return fmt.Errorf("the group of %s is restarted, which is where it should be", a.Leader)
}

func checkReplicas(o Observation, n int) error {
	if n < 0 || n > o.Stable.Replicas {
		return fmt.Errorf("a canary of %d groups for a workload of %d", n, o.Stable.Replicas)
	}
	return nil
}

// checkFence: canary leaders never get requests through the stable Service.
func checkFence(o Observation) error {
	if o.Traffic != nil && !o.Traffic.Look(prepared()).Fenced {
		return errors.New("canary groups come before the stable Service is fenced")
	}
	return nil
}

// checkWithdrawn: no canary capacity goes while a route sends requests to it.
func checkWithdrawn(o Observation) error {
	if o.Traffic == nil || o.Stable.Deleting || o.Gone {
		return nil
	}
	if weight := o.Traffic.Facts().Weight; weight > 0 {
		return fmt.Errorf("canary capacity goes while it gets %d %% of the requests", weight)
	}
	return nil
}

// checkRetire: while batches run, only a canary that carries something else, or is already going, may go; while the
// stable workload rolls, the canary's capacity stays.
func checkRetire(o Observation) error {
	if o.Stable.Deleting || o.Record == nil || o.Record.Release == nil {
		return nil
	}
	r, c := o.Record.Release, o.canary()
	switch r.Phase {
	case record.Promoting, record.Standby, record.HandingOver, record.RollingBack:
		if !o.completesSecondSet() || c != nil && !c.Deleting {
			return errors.New("canary capacity goes while the stable workload rolls")
		}
	case record.Progressing:
		if c != nil && !c.Deleting && r.UpdateRevision == o.Stable.Revision && len(o.Added) == 1 {
			return errors.New("canary capacity goes in mid-release")
		}
	default:
	}
	return nil
}

// checkSetStable: only a promotion and the way back from one release the hold, and batches in place as far as they go; and
// only Finalize begins a promotion.
func checkSetStable(o Observation, i Intent, a SetStable) error {
	var before, after record.Phase
	if r := o.release(); r != nil {
		before = r.Phase
	}
	if r := a.Record.Release; r != nil {
		after = r.Phase
	}
	_, asked := i.(Promote)
	if after == record.Promoting && before != record.Promoting && before != record.HandingOver && !asked {
		return errors.New("a promotion that nobody asked for")
	}
	switch held := a.Rolling != nil && record.SameRolling(*a.Rolling, record.Hold()); {
	case a.RestoreTemplate && (after != record.RollingBack || a.Record.Release.StableTemplate == nil):
		return errors.New("a template is restored that is not the stable one")
	case held, a.RestoreTemplate, a.Rolling == nil:
		return nil
	case after == record.RollingBack && o.Stable.Revision != o.Record.Release.StableRevision:
		return errors.New("a rollback to a template that is not the stable one")
	case after == record.Progressing && o.inPlace():
		return checkPartition(o, a)
	case after != record.Promoting && after != record.RollingBack:
		return fmt.Errorf("the hold is released in phase %q", after)
	}
	return nil
}

// checkPartition: LWS may update the groups of the batch and no other, and add none.
func checkPartition(o Observation, a SetStable) error {
	groups := o.Stable.Replicas - int(ptr.Deref(a.Rolling.Partition, 0))
	switch planned := measureProgress(o).Planned; {
	case groups > planned:
		return fmt.Errorf("%d groups would be updated, %d are planned", groups, planned)
	case groups == o.Stable.Replicas && !a.SaveTemplate && a.Record.Release.StableTemplate == nil:
		return errors.New("the last stable group would go without a way back")
	}
	if scaled(a.Rolling.MaxSurge, o.Stable.Replicas, true) > 0 {
		return errors.New("a surge in place")
	}
	return nil
}
