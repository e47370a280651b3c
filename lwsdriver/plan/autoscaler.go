// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Where there are two sets, an autoscaler that follows the load of one of them is wrong about both: once requests move, the
// load of the user's own groups falls, and it would scale them down, and the second set with them.

// Autoscaler is an object that sets the workload's replicas by itself.
type Autoscaler struct {
	Kind, Name string
	// Targets is true while it is the workload that it scales. One that somebody pointed elsewhere may still be held.
	Targets bool
	// Passed is true while it scales the successor of a workload that is being adopted.
	Passed bool
	// Scales is true while it may change replicas, in one direction at least.
	Scales bool
	// HasFinalizer is true while it carries a note of what its user had.
	Held bool
	// Lingers names what goes on to scale for a held one until its own controller has taken notice. Empty: nothing does.
	Lingers string
	// Unreadable is why its note can't be trusted. Empty: it can, or there is none.
	Unreadable string
}

func (a Autoscaler) String() string { return a.Kind + " " + a.Name }

// HoldAutoscaler keeps an autoscaler from scaling the workload, and notes what its user had in the same request.
type HoldAutoscaler struct{ Kind, Name string }

// ReleaseAutoscaler gives an autoscaler back as its user had it, but that it may be to scale another workload from now on.
type ReleaseAutoscaler struct {
	Kind, Name string
	// To is that workload. Empty: the one that it scaled before.
	To string
}

func (HoldAutoscaler) action()    {}
func (ReleaseAutoscaler) action() {}

func (a HoldAutoscaler) String() string { return fmt.Sprintf("hold %s %s", a.Kind, a.Name) }
func (a ReleaseAutoscaler) String() string {
	if a.To != "" {
		return fmt.Sprintf("give %s %s back, to scale %s", a.Kind, a.Name, a.To)
	}
	return fmt.Sprintf("give %s %s back", a.Kind, a.Name)
}

// Reasons of decisions about autoscalers.
const (
	ReasonHoldingAutoscaler    = "HoldingAutoscaler"
	ReasonReleasingAutoscaler  = "ReleasingAutoscaler"
	ReasonAutoscalerLingers    = "WaitingForAutoscaler"
	ReasonAutoscalersNotSynced = "AutoscalersNotSynced"
)

// holdsAutoscalers says whether the release needs its workload's autoscalers held.
func (o Observation) holdsAutoscalers() bool {
	if !o.switches() || o.Stable.Deleting {
		return false
	}
	return o.Record.Release.Phase.Unfinished()
}

// holdAutoscalers holds the workload's autoscalers, or gives those back that are held and need not be. Nil: they are as they
// should be. Nobody asks for it on the way back to the stable revision: requests return at once, whatever an autoscaler does.
func holdAutoscalers(o Observation, state pb.State) *Decision {
	hold := o.holdsAutoscalers()
	for _, a := range o.Autoscalers {
		switch {
		case a.Held && (!hold || !a.Targets):
			return releaseAutoscaler(a, state)
		case hold && a.Targets && a.Scales:
			return &Decision{
				Action: HoldAutoscaler{Kind: a.Kind, Name: a.Name}, State: state, Reason: ReasonHoldingAutoscaler,
				Message: fmt.Sprintf("%s is being held: it would follow the load of one of two sets", a),
			}
		}
	}
	if before := o.release().Phase == record.Progressing || o.completesSecondSet(); !hold || !before {
		return nil
	}
	return awaitAutoscalers(o, state)
}

// busyState is the state of a release whose batches run.
func (o Observation) busyState() pb.State {
	if o.canary() == nil && !o.inPlace() {
		return pb.State_STATE_PREPARING
	}
	return pb.State_STATE_UPGRADING
}

// awaitAutoscalers waits until it is known that nothing scales the workload, before requests move. Nil: that is so.
func awaitAutoscalers(o Observation, state pb.State) *Decision {
	if o.Unscanned != nil {
		return unscanned(o, state)
	}
	for _, a := range o.Autoscalers {
		if a.Targets && a.Lingers != "" {
			return &Decision{
				State: state, Reason: ReasonAutoscalerLingers,
				Message: fmt.Sprintf("%s is held, and %s is still there: is its controller running?", a, a.Lingers),
			}
		}
	}
	return nil
}

func unscanned(o Observation, state pb.State) *Decision {
	return &Decision{State: state, Reason: ReasonAutoscalersNotSynced, Message: "what scales " + o.Stable.Name + " is not known: " + o.Unscanned.Message}
}

func releaseAutoscaler(a Autoscaler, state pb.State) *Decision {
	return &Decision{
		Action: ReleaseAutoscaler{Kind: a.Kind, Name: a.Name}, State: state, Reason: ReasonReleasingAutoscaler,
		Message: fmt.Sprintf("%s is being given back", a),
	}
}

// releaseMovedAutoscalers gives back what somebody pointed at another workload since it was held. Nil: nothing.
func releaseMovedAutoscalers(o Observation, state pb.State) *Decision {
	for _, a := range o.Autoscalers {
		if a.Held && !a.Targets {
			return releaseAutoscaler(a, state)
		}
	}
	return nil
}

// releaseAutoscalers is the last effect of a release. Nil: none is held, as far as can be told from their notes.
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

// warnUnscanned adds what nobody but a person can give back.
func warnUnscanned(o Observation, d Decision) Decision {
	for _, a := range o.Autoscalers {
		if a.Unreadable != "" && !a.Scales {
			d.Message += fmt.Sprintf("; %s does not scale, and what it had can't be told: %s. Set it as you want it, and remove that annotation",
				a, a.Unreadable)
		}
	}
	return d
}

// checkAutoscalers: none is held for no reason, nor given back while a release needs it held.
func checkAutoscalers(o Observation, action Action) error {
	switch a := action.(type) {
	case HoldAutoscaler:
		if !o.holdsAutoscalers() {
			return fmt.Errorf("%s %s is held, and no release needs that", a.Kind, a.Name)
		}
	case ReleaseAutoscaler:
		for _, known := range o.Autoscalers {
			if known.Kind == a.Kind && known.Name == a.Name && known.Targets && o.holdsAutoscalers() && (!o.handingOver() || a.To == "") {
				return fmt.Errorf("%s is given back in mid-release", known)
			}
		}
	case SetTraffic:
		if o.Traffic != nil && a.Desired.Weight > o.Traffic.Facts().Weight {
			return checkQuiet(o)
		}
	case CreateCanary:
		return checkQuiet(o)
	}
	return nil
}

// checkQuiet: there is no second set, and no request for it, while something scales the first by its load.
func checkQuiet(o Observation) error {
	if !o.holdsAutoscalers() || o.Record.Release.Phase == record.RollingBack {
		return nil
	}
	for _, a := range o.Autoscalers {
		if a.Targets && a.Scales {
			return errors.New(a.String() + " scales in the middle of a switch")
		}
	}
	return nil
}

// HoldsAutoscalers says whether releases of a style hold the workload's autoscalers.
func HoldsAutoscalers(s pb.Style) bool {
	st, _ := styleOf(s)
	return st.switches
}
