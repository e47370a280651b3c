// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// ofRole is an autoscaler of a role under a hold.
func ofRole(held autoscaler.Hold) Autoscaler {
	return Autoscaler{
		Kind: autoscaler.KindHPA, Name: "prefill", Targets: true, Held: held,
		Directions: autoscaler.Directions{Up: held != autoscaler.HoldAll, Down: held == autoscaler.HoldNone},
	}
}

// scaledRoles is rolesObservation with a scaler of role prefill, and an autoscaler of it.
func scaledRoles(units int, phase record.Phase, style pb.Style, held autoscaler.Hold) Observation {
	o := rolesObservation(units, (units+1)/2)
	o.Roles[0].External, o.Autoscalers = true, []Autoscaler{ofRole(held)}
	o.Policy.Style, o.Policy.Batches = style, []record.Quantity{quantity("1"), quantity("100%")}
	o.Record.Release.Phase = phase
	return o
}

// An autoscaler of a role is held while units are released, and restored at every end. A promotion leaves its target.
func TestRoleAutoscalerHeld(t *testing.T) {
	t.Parallel()
	const canary, blueGreen, partition = pb.Style_STYLE_CANARY, pb.Style_STYLE_BLUE_GREEN, pb.Style_STYLE_PARTITION
	hold := func(h autoscaler.Hold) Action {
		return HoldAutoscaler{Kind: autoscaler.KindHPA, Name: "prefill", Hold: h}
	}
	restore := ReleaseAutoscaler{Kind: autoscaler.KindHPA, Name: "prefill"}
	gone := func(o *Observation) {
		o.Bounds, o.Children = &Bounds{Roles: rolesOf4and2, Stable: "old", Min: o.Bounds.Min}, o.Children[:2]
	}
	for _, tt := range []struct {
		name   string
		o      Observation
		change func(*Observation)
		want   Action
	}{
		{"a batch of a canary", scaledRoles(1, record.Progressing, canary, autoscaler.HoldNone), nil, hold(autoscaler.HoldDown)},
		{"units are replaced", scaledRoles(1, record.Progressing, partition, autoscaler.HoldNone), nil, hold(autoscaler.HoldDown)},
		{"a second set", scaledRoles(0, record.Progressing, blueGreen, autoscaler.HoldNone), nil, hold(autoscaler.HoldAll)},
		{"a promotion", scaledRoles(4, record.Promoting, canary, autoscaler.HoldDown), nil, hold(autoscaler.HoldAll)},
		{"rolled back", scaledRoles(0, record.CleaningUp, canary, autoscaler.HoldDown), gone, restore},
		{"promoted", scaledRoles(0, record.Promoted, canary, autoscaler.HoldAll), func(o *Observation) {
			gone(o)
			o.Record.Release.StableRevision, o.Record.Release.UpdateRevision, o.Stable.Revision = "older", "old", "old"
		}, restore},
		{"disowned", scaledRoles(0, record.Progressing, canary, autoscaler.HoldDown), func(o *Observation) { o.Record, o.Bounds = nil, nil }, restore},
		{"deleted", scaledRoles(0, record.Progressing, canary, autoscaler.HoldDown), func(o *Observation) { o.Stable.Deleting = true }, restore},
		{"pointed elsewhere", scaledRoles(1, record.Progressing, canary, autoscaler.HoldDown), func(o *Observation) { o.Autoscalers[0].Targets = false }, restore},
	} {
		if tt.change != nil {
			tt.change(&tt.o)
		}
		d := reconcile(Judge(tt.o))
		assert.True(t, d.Action == tt.want, "%s: %v (%s %s), want %v", tt.name, d.Action, d.Reason, d.Message, tt.want)
	}

	begun := scaledRoles(0, record.Promoted, canary, autoscaler.HoldNone)
	warnings := (Begin{Policy: &pb.ReleasePolicy{Style: canary}}).Warnings(Judge(begun))
	assert.True(t, len(warnings) == 1 && warnings[0].GetCode() == "AutoscalerHeld" && strings.Contains(warnings[0].GetMessage(), "HorizontalPodAutoscaler prefill scales DisaggregatedSet"),
		"the warnings are %v", warnings)
	o := scaledRoles(4, record.HandingOver, canary, autoscaler.HoldAll)
	o.Record.Release.Groups, o.Bounds.Min = 4, map[string]int{"0-prefill": 0, "0-decode": 0}
	o.Children[0].Replicas, o.Children[0].Groups, o.Children[1].Replicas, o.Children[1].Groups = 0, nil, 0, nil
	d := reconcile(Judge(o))
	a, ok := d.Action.(SetStable)
	assert.True(t, ok && a.Record.Release.Phase == record.Promoted, "the last step of a promotion is %v: %s", d.Action, d.Message)
}

// Only where every role has its groups from a scaler may autoscalers remove the last group.
func TestRoleAutoscalerToZero(t *testing.T) {
	t.Parallel()
	o := scaledRoles(0, record.CleaningUp, pb.Style_STYLE_CANARY, autoscaler.HoldNone)
	o.Autoscalers[0].ToZero = true
	hold := Judge(o).wantedHold(o.Autoscalers[0])
	assert.Empty(t, hold, "held %q although decode keeps its groups", hold)
	o.Roles[1].External = true
	hold = Judge(o).wantedHold(o.Autoscalers[0])
	assert.Equal(t, autoscaler.HoldDown, hold, "held %q although all groups may go", hold)
}

// While the number of groups of a role is unknown, nothing is begun, promoted or removed, and no batch is ready. An abort is accepted.
func TestRoleUnsized(t *testing.T) {
	t.Parallel()
	unsized := func(units int, phase record.Phase, style pb.Style) Observation {
		o := scaledRoles(units, phase, style, autoscaler.HoldDown)
		o.Roles[0].Unsized, o.Roles[0].Replicas = "LeaderWorkerSet has not created DisaggregatedSetRoleScaler serving/llm-prefill yet", LastSize(o, "prefill")
		return Judge(o)
	}
	o := unsized(1, record.Progressing, pb.Style_STYLE_CANARY)
	assert.Equal(t, 4, o.Roles[0].Replicas, "groups are the last known number")
	if d := reconcile(o); d.Action != nil || d.State != pb.State_STATE_VERIFYING || d.Reason != ReasonRoleUnsized || !strings.Contains(d.Message, "llm-prefill") || d.Remedy == "" {
		t.Errorf("the batch is %s %s: %v, %s", d.State, d.Reason, d.Action, d.Message)
	}
	for what, i := range map[string]Intent{"promote": Promote{ReleaseID: "r"}, "adopt": Adopt{}} {
		_, err := Decide(o, i)
		assert.Equal(t, pb.ErrorReason_ERROR_REASON_NOT_SYNCED, drivererr.Reason(err), "%s: %v", what, err)
	}
	rest := o
	rest.Record = &record.Record{}
	d, err := Decide(Judge(rest), Disown{})
	assert.True(t, err == nil && d.Action != nil, "disown: %v, %v", d.Action, err)
	d, err = Decide(o, RollBack{ReleaseID: "r"})
	assert.True(t, err == nil && d.Action != nil, "an abort: %v, %v", d.Action, err)
	lower := *o.Bounds
	lower.Min = map[string]int{"0-prefill": 3, "0-decode": 2}
	for _, action := range []Action{SetBounds{Bounds: lower}, ScaleChild{Name: "llm-old-prefill", Replicas: 3}, LabelServing{Serves: true}} {
		assert.NotNil(t, limitStale(o, action), "%T is written", action)
	}
	assert.NotNil(t, limitStale(unsized(1, record.Progressing, pb.Style_STYLE_PARTITION), LabelServing{}),
		"a stable group loses its requests although the number of groups is unknown")
}
