// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package explore visits every state of a small world around a host, of which [Driver] is the driver's part.
package explore

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Driver is a workload, its record and the driver of a world. It follows the contract.
type Driver struct {
	Template, Serving string
	Adopted           bool
	Release, Owner    string
	Update, Stable    string
	State             pb.State
	Intent            pb.FinalizeIntent
	Planned, Replicas int32
}

// Context is what the driver answers.
func (d *Driver) Context() *pb.BatchContext {
	c := &pb.BatchContext{
		State: pb.State_STATE_UNMANAGED, TemplateRevision: d.Template, StableRevision: d.Serving, UpdateRevision: d.Serving,
		Replicas: d.Replicas, Total: d.Replicas, Planned: d.Planned, Message: "m", Reason: "R",
	}
	if !d.Adopted {
		return c
	}
	c.State = pb.State_STATE_HOLDING
	if d.Release != "" {
		c.State, c.ReleaseId, c.Owner, c.Intent = d.State, d.Release, d.Owner, d.Intent
		c.UpdateRevision, c.StableRevision = d.Update, d.Stable
	}
	return c
}

// Call answers a request as the contract says. justify is called before a template is released or its hold ends, with the revision.
func (d *Driver) Call(request proto.Message, justify func(what, revision string)) (*pb.BatchContext, error) {
	switch r := request.(type) {
	case *pb.CalculateBatchContextRequest:
	case *pb.AdoptRequest:
		d.Adopted = true
	case *pb.DisownRequest:
		justify("Disown", d.Template)
		d.Adopted, d.Release, d.Owner = false, "", ""
	case *pb.InitializeRequest:
		switch {
		case r.GetTemplateRevision() != d.Template:
			return nil, changed
		case r.GetReleaseId() == d.Release:
			return d.Context(), nil
		case d.InFlight():
			return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS, "another release")
		}
		justify("Initialize", d.Template)
		d.Adopted, d.Release, d.Owner, d.Update, d.Stable = true, r.GetReleaseId(), r.GetOwner(), d.Template, d.Serving
		d.State, d.Intent, d.Planned = pb.State_STATE_HOLDING, 0, 0
		if d.Template == d.Serving {
			d.State = pb.State_STATE_NOTHING_TO_RELEASE
		}
	case *pb.UpgradeBatchRequest:
		if r.GetUpdateRevision() != d.Update || d.Update != d.Template {
			return nil, changed
		}
		justify("UpgradeBatch", d.Update)
		before := d.Planned
		_, _ = fmt.Sscan(r.GetGroups(), &d.Planned) // a batch by its index is none
		if d.State == pb.State_STATE_HOLDING || d.Planned != before {
			d.State = pb.State_STATE_UPGRADING
		}
	case *pb.FinalizeRequest:
		promotes := r.GetIntent() == pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE
		switch {
		case promotes && d.State == pb.State_STATE_ROLLING_BACK, !promotes && d.promoted():
			return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED, "the other end was requested")
		case promotes && (r.GetUpdateRevision() != d.Update || d.Update != d.Template):
			return nil, changed
		}
		if d.Intent, d.State = r.GetIntent(), pb.State_STATE_ROLLING_BACK; promotes {
			justify("PROMOTE", d.Update)
			d.State = pb.State_STATE_PROMOTING
		}
	case *pb.UndoRequest:
		if r.GetTemplateRevision() != d.Template {
			return nil, changed
		}
		d.Template = r.GetRevision()
	default:
		return nil, fmt.Errorf("unexpected %T", r)
	}
	return d.Context(), nil
}

var changed = drivererr.New(pb.ErrorReason_ERROR_REASON_REVISION_CHANGED, "another template")

// promoted reports whether all groups are updated, so that a promotion that has not ended can't be taken back.
func (d *Driver) promoted() bool {
	return d.State == pb.State_STATE_PROMOTING && d.Serving == d.Update
}

// InFlight reports whether a release is in flight.
func (d *Driver) InFlight() bool { return plugin.InFlight(d.Context()) }

// Work is one action of the driver and the cluster.
func (d *Driver) Work() {
	switch {
	case d.Release == "":
	case d.InFlight() && d.Template != d.Update && d.State != pb.State_STATE_ROLLING_BACK && !d.promoted():
		d.Update, d.Intent, d.State, d.Planned = d.Template, 0, pb.State_STATE_HOLDING, 0 // it starts over
		if d.Template == d.Stable {
			d.State = pb.State_STATE_ROLLING_BACK
		}
	case d.State == pb.State_STATE_UPGRADING:
		d.State = pb.State_STATE_READY
	case d.State == pb.State_STATE_PROMOTING && !d.promoted():
		d.Serving = d.Update
	case d.State == pb.State_STATE_PROMOTING:
		d.State, d.Planned = pb.State_STATE_COMPLETED, 0
	case d.State == pb.State_STATE_ROLLING_BACK:
		d.State, d.Planned = pb.State_STATE_ROLLED_BACK, 0
	}
}

// World is a small world, whose states are comparable, so that each is visited once.
type World[S comparable] struct {
	// Next returns the states that follow, by the name of the action.
	Next func(S) map[string]S
	// End lets all parts work until nothing changes, with a user who does what is due. It returns what is left in the end, and whether its
	// template is released, or waits for another act of the user.
	End func(S) (end S, released, waits bool)
	// Broken is the rule that was broken. Empty means none.
	Broken *string
}

// Visit visits every state that is reachable from the first one. No rule may be broken in any, and nor on the way to the end from states in
// between.
func (w World[S]) Visit(t *testing.T, first S) {
	t.Helper()
	type visit struct {
		from   int
		action string
	}
	states, visits, known := []S{first}, []visit{{from: -1}}, map[S]bool{first: true}
	released, held := 0, 0
	path := func(i int) string {
		text := ""
		for ; visits[i].from >= 0; i = visits[i].from {
			text = "  " + visits[i].action + "\n" + text
		}
		return text
	}
	for i := 0; i < len(states); i++ {
		following := w.Next(states[i])
		if *w.Broken != "" {
			t.Fatalf("%s:\n%s  one of %q\n%+v", *w.Broken, path(i), slices.Sorted(maps.Keys(following)), states[i])
		}
		for action, after := range following {
			if !known[after] {
				known[after] = true
				states, visits = append(states, after), append(visits, visit{i, action})
			}
		}
		if i%50 != 0 {
			continue
		}
		switch end, over, waits := w.End(states[i]); {
		case *w.Broken != "":
			t.Fatalf("%s, on the way from:\n%s%+v", *w.Broken, path(i), states[i])
		case over:
			released++
		case waits:
			held++
		default:
			t.Fatalf("nothing waits for anybody, and the template is not released from:\n%s%+v\nthe end: %+v", path(i), states[i], end)
		}
	}
	t.Logf("%d states; of those in between %d end released and %d wait for a user", len(states), released, held)
	if len(states) < 1000 || released == 0 || held == 0 {
		t.Errorf("only %d states, %d released, %d held", len(states), released, held)
	}
}
