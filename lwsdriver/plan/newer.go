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

// Drivers of several versions may run at once. One that does not know all of a release neither carries it on nor repairs
// what it finds: it would do half of what was requested, or undo the other's writes. It may always go back, for which id,
// phase, stable revision and style are enough; what it does not know of the record stays in it.

// leftToNewer reports whether the workload is left to a newer driver: nothing is written without a RollBack.
func (o Observation) leftToNewer() bool {
	switch r := o.release(); {
	case o.Stable.Deleting || o.Gone:
		return false
	case o.newerRendering():
		return true
	case o.Newer == "":
		return false
	case r != nil && (r.Phase == record.RollingBack || r.Phase == record.CleaningUp):
		return false
	}
	// What matters of a release that is over is only that it is: the next one replaces it in the record.
	return o.Record.NewerSchema() || InFlight(o)
}

func leaveToNewer(o Observation, s Progress) Decision {
	return Decision{State: pb.State_STATE_FAILED, Reason: ReasonNewerDriver, Message: newerText(o), Progress: s}
}

func newerText(o Observation) string {
	what := fmt.Sprintf("the record of %s", o.Stable.Name)
	if r := o.release(); r != nil {
		what = fmt.Sprintf("release %s of %s", r.ID, o.Stable.Name)
	}
	text := fmt.Sprintf("%s was written by a newer driver, with %s: run that driver", what, o.newer())
	switch {
	case o.handingOver():
		return text // there is no way back
	case o.release() != nil && o.release().Phase.Unfinished():
		return text + ", or roll the release back, which this driver can do (lockstep abort)"
	case InFlight(o):
		return text
	}
	return text + ", or disown the workload and adopt it again"
}

// checkKnown refuses an intent that a driver must know all of the record for. A rollback needs little, and Disown removes
// the record.
func checkKnown(o Observation, i Intent) error {
	if o.newer() == "" {
		return nil
	}
	switch i.(type) {
	case RollBack, Disown, Adopt:
		return nil
	}
	if r := o.release(); !o.leftToNewer() && !o.Record.NewerSchema() && (r == nil || !InFlight(o)) {
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
