// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/release"
)

// checkObservation holds for everything that observe returns.
func checkObservation(o Observation) error {
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
func checkDecision(o Observation, d Decision) error {
	switch a := d.Action.(type) {
	case CreateCanary:
		if len(o.Added) > 0 {
			return errors.New("never two canaries")
		}
		return errors.Join(checkReplicas(o, a.Replicas), checkFence(o))
	case ScaleCanary:
		if c := o.canary(); c != nil && a.Replicas <= c.Replicas {
			return checkReplicas(o, a.Replicas)
		}
		return errors.Join(checkReplicas(o, a.Replicas), checkFence(o))
	case DeleteCanary, LetGo:
		return errors.Join(checkRetire(o), checkWithdrawn(o))
	case SetStable:
		return checkSetStable(o, a)
	}
	return nil
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
	if o.Traffic == nil || o.Stable.Deleting {
		return nil
	}
	if weight := o.Traffic.Look(prepared()).Weight; weight > 0 {
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
	r := o.Record.Release
	switch r.Phase {
	case release.Promoting, release.Returning:
		return errors.New("canary capacity goes while the stable workload rolls")
	case release.Progressing:
		if c := o.canary(); c != nil && !c.Deleting && r.UpdateRevision == o.Stable.Revision && len(o.Added) == 1 {
			return errors.New("canary capacity goes in mid-release")
		}
	default:
	}
	return nil
}

// checkSetStable: only a promotion and the way back from one release the hold, and only Finalize begins a promotion.
func checkSetStable(o Observation, a SetStable) error {
	var before, after release.Phase
	if r := o.Record.Release; r != nil {
		before = r.Phase
	}
	if r := a.Record.Release; r != nil {
		after = r.Phase
	}
	if after == release.Promoting && before != release.Promoting {
		return errors.New("a promotion that nobody asked for")
	}
	if after == release.Returning && o.Stable.Revision != o.Record.Release.StableRevision {
		return errors.New("a rollback to a template that is not the stable one")
	}
	if !release.SameRolling(a.Rolling, release.Hold()) && after != release.Promoting && after != release.Returning {
		return fmt.Errorf("the hold is released in phase %q", after)
	}
	return nil
}
