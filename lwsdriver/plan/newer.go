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
	return o.Newer != ""
}

func newerText(o Observation) string {
	r := o.release()
	text := fmt.Sprintf("the record of %s was written by a newer driver, with %s: run that driver", o.Stable.Name, o.Newer)
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
	if o.Newer == "" {
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
