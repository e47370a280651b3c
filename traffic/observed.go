// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"reflect"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Observed is one look at a release's traffic, as plain data: it can be compared, written down and read back. It is not
// for concurrent use.
type Observed struct {
	Setup Setup
	World World
	// Unread is why the objects can't be read. Nil: World has them.
	Unread *drivererr.Problem `json:",omitempty"`

	facts *Facts
	views []answer
}

// answer is a view that was computed before.
type answer struct {
	desired Desired
	view    View
}

// Facts returns what the requests meet now. It computes them once.
func (o *Observed) Facts() Facts {
	if o.facts == nil {
		o.facts = new(Facts)
		if o.Unread == nil {
			*o.facts = FactsOf(o.Setup, o.World)
		}
	}
	return *o.facts
}

// Look is [Look] on the objects that were observed. It computes each view once.
func (o *Observed) Look(d Desired) View {
	for _, a := range o.views {
		if reflect.DeepEqual(a.desired, d) {
			return a.view
		}
	}
	a := answer{desired: d}
	if o.Unread != nil {
		a.view = unreadView(o.Unread)
	} else {
		a.view = Look(o.Setup, d, o.World)
	}
	o.views = append(o.views, a)
	return a.view
}

// unreadView is the view while the objects can't be read.
func unreadView(why *drivererr.Problem) View {
	if why.Reason == pb.ErrorReason_ERROR_REASON_NOT_SYNCED {
		return View{Reason: ReasonNotSynced, Message: why.Message}
	}
	return View{Stage: Blocked, Reason: ReasonBlocked, Message: why.Message}
}
