// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// While there are two sets, an autoscaler that follows the load of one is wrong about both: once requests move, the load
// of the user's own groups falls, and the autoscaler would scale them down, and the second set with them.

// Autoscaler is an object that changes the workload's replicas.
type Autoscaler struct {
	Kind, Name string
	// Targets is true if it scales the workload. One that was pointed elsewhere may still be held.
	Targets bool
	// Passed is true if it scales the successor of a workload that is being handed over.
	Passed bool
	// Scales is true if it may change replicas, at least in one direction.
	Scales bool
	// Held is true if it has a note of its user's settings.
	Held bool
	// Lingers names an object that still scales for a held autoscaler until its controller has observed the hold. Empty:
	// none.
	Lingers string
	// Unreadable is why its note can't be trusted. Empty: it can, or does not exist.
	Unreadable string
}

func (a Autoscaler) String() string { return a.Kind + " " + a.Name }

// HoldAutoscaler keeps an autoscaler from scaling the workload, and saves its user's settings in the same request.
type HoldAutoscaler struct{ Kind, Name string }

// ReleaseAutoscaler restores the settings of an autoscaler's user, and may point it at another workload.
type ReleaseAutoscaler struct {
	Kind, Name string
	// To is the workload to scale. Empty: unchanged.
	To string
}

func (HoldAutoscaler) action()    {}
func (ReleaseAutoscaler) action() {}

func (a HoldAutoscaler) String() string { return fmt.Sprintf("hold %s %s", a.Kind, a.Name) }
func (a ReleaseAutoscaler) String() string {
	if a.To != "" {
		return fmt.Sprintf("restore %s %s and point it at %s", a.Kind, a.Name, a.To)
	}
	return fmt.Sprintf("restore %s %s", a.Kind, a.Name)
}

// Reasons of decisions about autoscalers.
const (
	ReasonHoldingAutoscaler    = "HoldingAutoscaler"
	ReasonReleasingAutoscaler  = "ReleasingAutoscaler"
	ReasonAutoscalerLingers    = "WaitingForAutoscaler"
	ReasonAutoscalersNotSynced = "AutoscalersNotSynced"
)

// holdsAutoscalers reports whether the release needs the workload's autoscalers held.
func (o Observation) holdsAutoscalers() bool {
	if !o.switches() || o.Stable.Deleting {
		return false
	}
	return o.Record.Release.Phase.Unfinished()
}

// holdAutoscalers holds the workload's autoscalers while the release needs it, and restores the others. Nil: nothing is
// left to do. Rollbacks do not call it: they return requests at once, whatever an autoscaler does.
func holdAutoscalers(o Observation, state pb.State) *Decision {
	hold := o.holdsAutoscalers()
	for _, a := range o.Autoscalers {
		switch {
		case a.Held && (!hold || !a.Targets):
			return releaseAutoscaler(a, state)
		case hold && a.Targets && a.Scales:
			return &Decision{
				Action: HoldAutoscaler{Kind: a.Kind, Name: a.Name}, State: state, Reason: ReasonHoldingAutoscaler,
				Message: fmt.Sprintf("%s is being held: it would follow the load of one of the two sets", a),
			}
		}
	}
	if before := o.release().Phase == record.Progressing || o.completesSecondSet(); !hold || !before {
		return nil
	}
	return awaitAutoscalers(o, state)
}

// busyState returns the state of a release whose batches run.
func (o Observation) busyState() pb.State {
	if o.canary() == nil && !o.inPlace() {
		return pb.State_STATE_PREPARING
	}
	return pb.State_STATE_UPGRADING
}

// awaitAutoscalers waits, before requests move, until it is known that nothing scales the workload. Nil: nothing does.
func awaitAutoscalers(o Observation, state pb.State) *Decision {
	if o.Unscanned != nil {
		return unscanned(o, state)
	}
	for _, a := range o.Autoscalers {
		if a.Targets && a.Lingers != "" {
			return &Decision{
				State: state, Reason: ReasonAutoscalerLingers,
				Message: fmt.Sprintf("%s is held, but %s still exists: check that its controller is running", a, a.Lingers),
			}
		}
	}
	return nil
}

func unscanned(o Observation, state pb.State) *Decision {
	return &Decision{State: state, Reason: ReasonAutoscalersNotSynced, Message: "the autoscalers of " + o.Stable.Name + " are unknown: " + o.Unscanned.Message}
}

func releaseAutoscaler(a Autoscaler, state pb.State) *Decision {
	return &Decision{
		Action: ReleaseAutoscaler{Kind: a.Kind, Name: a.Name}, State: state, Reason: ReasonReleasingAutoscaler,
		Message: fmt.Sprintf("%s is being restored", a),
	}
}

// releaseMovedAutoscalers restores held autoscalers that no longer scale the workload. Nil: none.
func releaseMovedAutoscalers(o Observation, state pb.State) *Decision {
	for _, a := range o.Autoscalers {
		if a.Held && !a.Targets {
			return releaseAutoscaler(a, state)
		}
	}
	return nil
}

// releaseAutoscalers restores every held autoscaler, as the last effect of a release. Nil: none has a note.
func releaseAutoscalers(o Observation, state pb.State) *Decision {
	for _, a := range o.Autoscalers {
		if a.Held {
			return releaseAutoscaler(a, state)
		}
	}
	if o.switches() && o.Unscanned != nil {
		return unscanned(o, state)
	}
	return nil
}

// warnUnscanned adds autoscalers that only a user can restore.
func warnUnscanned(o Observation, d Decision) Decision {
	for _, a := range o.Autoscalers {
		if a.Unreadable != "" && !a.Scales {
			d.Message += fmt.Sprintf("; %s does not scale, and its saved settings can't be read: %s. Set it as you want it, and remove that annotation",
				a, a.Unreadable)
		}
	}
	return d
}

// checkAutoscalers: none is held without a release that needs it, or restored while a release does.
func checkAutoscalers(o Observation, action Action) error {
	switch a := action.(type) {
	case HoldAutoscaler:
		if !o.holdsAutoscalers() {
			return fmt.Errorf("%s %s is held without a release that needs it", a.Kind, a.Name)
		}
	case ReleaseAutoscaler:
		for _, known := range o.Autoscalers {
			if known.Kind == a.Kind && known.Name == a.Name && known.Targets && o.holdsAutoscalers() && (!o.handingOver() || a.To == "") {
				return fmt.Errorf("%s is restored in mid-release", known)
			}
		}
	case SetTraffic:
		if o.Traffic != nil && a.Desired.Weight > o.Traffic.Facts().Weight {
			return checkNoScaling(o)
		}
	case CreateCanary:
		return checkNoScaling(o)
	}
	return nil
}

// checkNoScaling: no second set, and no request to it, while an autoscaler scales the first set by its load.
func checkNoScaling(o Observation) error {
	if !o.holdsAutoscalers() || o.Record.Release.Phase == record.RollingBack {
		return nil
	}
	for _, a := range o.Autoscalers {
		if a.Targets && a.Scales {
			return errors.New(a.String() + " scales while requests move")
		}
	}
	return nil
}

// HoldsAutoscalers reports whether releases of a style hold the workload's autoscalers.
func HoldsAutoscalers(s pb.Style) bool {
	st, _ := styleOf(s)
	return st.switches
}
