// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/release"
)

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
	// Once every group is updated, only the stable template leads back.
	save := next.Release.StableTemplate == nil && slices.Contains(o.Stable.Recorded, next.Release.StableRevision)
	return noted(o, SetStable{Record: next, Rolling: pace, SaveTemplate: save, Why: "promote release " + next.Release.ID})
}

// BeginRollback records the intent to roll back, and puts the hold on. The release must be Progressing, Promoting or Standby.
func BeginRollback(o Observation) SetStable {
	phase, promoting := release.RollingBack, o.Record.Release.Phase != release.Progressing && !o.untouched()
	if o.inPlace() || promoting {
		phase = release.Returning // batches or the promotion have reached the user's own groups
	}
	next := moved(o, func(r *release.Release) { r.Phase = phase })
	next.Saved = Saved(o)
	if promoting {
		next.Saved = absorbPace(o)
	}
	return noted(o, SetStable{Record: next, Rolling: release.Hold(), Why: "roll back release " + next.Release.ID})
}

// GiveBackNow gives the workload back with the user's own configuration.
func GiveBackNow(o Observation) GiveBack { return GiveBack{Rolling: Saved(o)} }
