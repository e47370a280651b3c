// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Drivers of several versions may run at once. One that does not know all of a record writes nothing: it would do half of what was
// requested, or undo the other's writes. It may always roll the release back, which leaves in the record what this driver does not
// know.

// leftToNewer reports whether the workload is left to a newer driver: nothing is written without a RollBack or Disown.
func (o Observation) leftToNewer() bool {
	r := o.release()
	if o.Stable.Deleting || r != nil && r.Phase.Intent() == pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK {
		return false
	}
	return o.newerDetail() != ""
}

func newerText(o Observation) string {
	r := o.release()
	text := fmt.Sprintf("the record of %s was written by a newer driver, with %s: run that driver", o.Stable.Name, o.newerDetail())
	switch {
	case r != nil && r.Phase.Unfinished() && (r.Phase != record.HandingOver || o.hasRoles()): // that of a LeaderWorkerSet has no way back
		return text + fmt.Sprintf(", or roll release %s back (lockstep abort %s)", r.ID, o.inCommands())
	case !InFlight(o):
		return text + ", or disown the workload and adopt it again"
	}
	return text
}

// checkKnown refuses the intents of which a driver must know all of the record. Disown removes it.
func checkKnown(o Observation, i Intent) error {
	switch i.(type) {
	case RollBack, Disown, Adopt:
		return nil
	}
	if o.newerDetail() == "" {
		return nil
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_NEWER_DRIVER, "%s", newerText(o))
}

// checkLeftToNewer: what is left to a newer driver is not written.
func checkLeftToNewer(o Observation, i Intent, a Action) error {
	if a == nil || !o.leftToNewer() {
		return nil
	}
	switch i.(type) {
	case RollBack, Disown:
		return nil
	}
	return errors.New("a release that a newer driver drives is carried on")
}

// Drivers of two versions may render the canary, Services and routes differently: each would repair what the other one
// wrote, in turns. So the record has the highest rendering version of the drivers that carried the release on. A driver with
// a higher one raises it before its first write; one with a lower one leaves the release alone. Going back is not rendered:
// what a release added is deleted, and the user's objects are restored as their annotations say.

// rendersObjects reports whether a release is in a phase in which the driver renders objects.
func rendersObjects(r *record.Release) bool {
	return r != nil && r.Phase.Unfinished() && r.Phase != record.RollingBack
}

// newerDetail describes how the record is that of a newer driver. Empty means that it is not.
func (o Observation) newerDetail() string {
	// An unknown field weighs more: it may change what every other one means.
	if r := o.release(); o.Newer == "" && rendersObjects(r) && r.Rendering > o.Rendering {
		return fmt.Sprintf("rendering version %d (this driver has %d)", r.Rendering, o.Rendering)
	}
	return o.Newer
}

// raisesRendering reports whether the next write that carries the release on makes it this driver's.
func (o Observation) raisesRendering() bool {
	return rendersObjects(o.release()) && o.release().Rendering < o.Rendering && !o.Stable.Deleting && !o.Succeeded
}

// withRendering raises the rendering version in a record that is written anyway.
func withRendering(o Observation, d Decision) Decision {
	a, ok := d.Action.(SetStable)
	if !ok || !o.raisesRendering() || !rendersObjects(a.Record.Release) {
		return d
	}
	next := *a.Record.Release
	next.Rendering = o.Rendering
	a.Record.Release = &next
	d.Action = a
	return d
}

// raiseRendering raises the rendering version with or before a write of the loop, once per release. One write of the driver with the
// lower version may be under way meanwhile, which this driver repairs.
func raiseRendering(o Observation, d Decision) Decision {
	if d.Action == nil || !o.raisesRendering() {
		return d
	}
	if _, ok := d.Action.(SetStable); !ok {
		d.Action = SetStable{Record: *o.Record, Why: fmt.Sprintf("carry release %s on with rendering version %d", o.release().ID, o.Rendering)}
	}
	return withRendering(o, d)
}

// checkRendering refuses writes that carry a release on while its record has a lower rendering version.
func checkRendering(o Observation, i Intent, a Action) error {
	if _, back := i.(RollBack); a == nil || back || !o.raisesRendering() {
		return nil
	}
	if set, ok := a.(SetStable); ok && (!rendersObjects(set.Record.Release) || set.Record.Release.Rendering == o.Rendering) {
		return nil
	}
	return fmt.Errorf("a release with rendering version %d is carried on with %d before its record says so", o.release().Rendering, o.Rendering)
}
