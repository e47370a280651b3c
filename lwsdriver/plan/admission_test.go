// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// A request whose effect has to wait for admission is recorded at once.
func TestRecordOnly(t *testing.T) {
	const text = `workload vllm replicas=4 revision=B hold
record phase=Progressing stable=A update=B since=1h set=hold
groups 0-3 revision=A ready=9h
canary vllm-b replicas=1 carries=B target=25%#0@5m
groups 0-0 revision=B ready=5m`
	o := observed(t, text)
	for _, tt := range []struct {
		room   *int
		canary int
		held   bool
	}{{nil, 2, false}, {ptr.To(1), 2, false}, {ptr.To(0), 1, true}} {
		o.MaxInFlight = tt.room
		d := must(Decide(o, SetTarget{ReleaseID: o.Record.Release.ID, Groups: "50%"}))
		if a, ok := d.Action.(ScaleCanary); !ok || a.Replicas != tt.canary || a.Target.Groups != "50%" || d.Starts != tt.canary-1 {
			t.Errorf("target with room %v: %+v, starts %d", tt.room, d.Action, d.Starts)
		}
		d = must(Decide(o, Promote{ReleaseID: o.Record.Release.ID}))
		if a, ok := d.Action.(SetStable); !ok || a.Record.Release.Phase != record.Promoting || (a.Rolling == nil) != tt.held {
			t.Errorf("promotion with room %v: %+v", tt.room, d.Action)
		}
	}
}

// A promotion is recorded at once, and LWS rolls once every group that it takes for available is.
func TestPromoteRollsWithinLimits(t *testing.T) {
	t.Parallel()
	const text = `policy style=PARTITION
workload vllm replicas=2 revision=B hold
record phase=Progressing stable=A update=B since=5s set=hold
groups 0 revision=A %s reason=Terminating lost=5s
groups 1 revision=A ready=2h`
	for terminating, held := range map[string]bool{"terminating=ready": true, "terminating": false} {
		o := observed(t, fmt.Sprintf(text, terminating))
		a := must(Decide(o, Promote{ReleaseID: o.Record.Release.ID})).Action.(SetStable)
		assert.Equal(t, record.Promoting, a.Record.Release.Phase, terminating)
		assert.Equal(t, held, a.Rolling == nil, terminating)
	}
}

// Of a DisaggregatedSet the groups of all roles count, those that start and those that are starting.
func TestAdmissionOfRoles(t *testing.T) {
	t.Parallel()
	o := rolesObservation(2, 1)
	o.Children[3].Groups[0].Ready = false
	rec := must(Decide(Judge(o), SetTarget{ReleaseID: "r", Groups: "100%"})).Action.(SetStable).Record
	o.Record = &rec
	for _, tt := range []struct {
		room, starts int
	}{{4, 3}, {3, 0}} {
		o.MaxInFlight = &tt.room
		if d := reconcile(Judge(o)); d.InFlight != 1 || d.Starts != tt.starts || (d.Reason == ReasonWaitingForAdmission) != (tt.starts == 0) {
			t.Errorf("room for %d: %v, %d in flight, starts %d: %s", tt.room, d.Action, d.InFlight, d.Starts, d.Reason)
		}
	}
	// So they do in the first batch, which the bounds do not have yet.
	o = rolesObservation(0, 0)
	rec.Release.Target = &record.Target{Groups: "100%", At: noon}
	o.Record = &rec
	d := reconcile(Judge(o))
	assert.Equal(t, 6, d.Starts, "%v", d.Action)
}
