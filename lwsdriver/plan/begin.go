// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import "github.com/lockstep-rollouts/lockstep/lwsdriver/release"

// What a host asks for, as one write: the intent together with its first effect. Plan takes it from there.

// BeginPromotion records the intent to promote and takes the hold off, unless requests come first. The release must be
// Progressing.
func BeginPromotion(o Observation) SetStable {
	next := moved(o, func(r *release.Release) { r.Phase, r.Open = release.Promoting, o.splits() })
	next.Saved = Saved(o)
	pace := o.pace(next.Saved)
	switch {
	case o.splits():
		pace = o.unmoved() // the batch stays as it is until its share has gone
	case o.Traffic != nil || o.switches():
		pace = release.Hold()
	}
	return noted(o, SetStable{Record: next, Rolling: pace, Why: "promote release " + next.Release.ID})
}

// BeginRollback records the intent to roll back. The release must be Progressing.
func BeginRollback(o Observation) SetStable {
	phase := release.RollingBack
	if o.inPlace() {
		phase = release.Returning // batches have reached the user's own groups
	}
	next := moved(o, func(r *release.Release) { r.Phase = phase })
	next.Saved = Saved(o)
	return noted(o, SetStable{Record: next, Rolling: release.Hold(), Why: "roll back release " + next.Release.ID})
}

// GiveBackNow gives the workload back with the user's own configuration.
func GiveBackNow(o Observation) GiveBack { return GiveBack{Rolling: Saved(o)} }
