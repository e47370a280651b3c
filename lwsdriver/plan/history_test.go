// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// held is a workload at rest: its groups run one revision, and its template is another or the same.
func held(template string, runs string, change ...func(*Observation)) Observation {
	o := Observation{
		Key: scenarioKey, Now: noon, Record: &record.Record{Saved: record.Native(record.Hold())}, HistoryLimit: 3,
		Stable: Workload{
			Name: "vllm", Replicas: 1, Size: 1, Revision: template, ChangedBy: "kubectl-edit", Rolling: record.Hold(), Observed: true,
			Recorded: []string{runs, template},
			Groups:   []Group{{Index: 0, Leader: "vllm-0", Revision: runs, Ready: true, ReadySince: noon, FirstReady: noon}},
		},
	}
	slices.Sort(o.Stable.Recorded)
	o.Stable.Recorded = slices.Compact(o.Stable.Recorded)
	for _, f := range change {
		f(&o)
	}
	return o
}

func released(id string, phase record.Phase, from, to string) func(*Observation) {
	return func(o *Observation) {
		o.Policy.Style = pb.Style_STYLE_PARTITION
		o.Record.Release = &record.Release{
			ID: id, Owner: "jo", Phase: phase, StableRevision: from, UpdateRevision: to, StartedAt: ago("1h"), PhaseAt: noon,
		}
	}
}

func recorded(entries ...Entry) func(*Observation) {
	return func(o *Observation) { o.History = entries }
}

// TestReleaseEndsWithOutcome checks that the next release does not replace one in the record whose outcome is about to be saved,
// whichever of a request and the loop comes first.
func TestReleaseEndsWithOutcome(t *testing.T) {
	entries := []Entry{{Revision: "a", Number: 1, At: ago("2h")}, {Revision: "b", Number: 2, At: ago("1h"), Release: "r1", Owner: "jo"}}
	for name, intent := range map[string]Intent{
		"begin": Begin{ReleaseID: "r2", Policy: &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"100%"}}}, "disown": Disown{},
	} {
		o := held("b", "b", released("r1", record.Promoted, "a", "b"), recorded(slices.Clone(entries)...))
		if _, err := Decide(o, intent); drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS {
			t.Errorf("%s while the loop decides %q: %v, want RELEASE_IN_PROGRESS", name, reconcile(o).Action, err)
		}
		if o.HistoryUnread = true; drivererr.Reason(refusal(o, intent)) != pb.ErrorReason_ERROR_REASON_UNSPECIFIED {
			t.Errorf("%s waits for a history that can't be written", name)
		}
		o.HistoryUnread, o.History[1].Outcome = false, Promoted
		assert.NoError(t, refusal(o, intent), "%s after the outcome was saved", name)
		// Nor while an autoscaler, once its hold is removed, would remove groups to which requests have just returned.
		o.Autoscalers = []Autoscaler{{Kind: "HorizontalPodAutoscaler", Name: "vllm", Targets: true, Limited: true, Held: autoscaler.HoldDown}}
		for _, is := range []string{ReasonAutoscalerLingers, ReasonReleasingAutoscaler} {
			require.Equal(t, is, reconcile(o).Reason)
			assert.Equal(t, pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS, drivererr.Reason(refusal(o, intent)), "%s while %s", name, is)
			o.Now = o.Now.Add(loadReturns)
		}
		o.Refused = &drivererr.Problem{Reason: pb.ErrorReason_ERROR_REASON_REJECTED, Message: "forbidden"}
		assert.NoError(t, refusal(o, intent), "%s while the autoscaler can't be restored", name)
	}
}

// TestReleaseIDReturns checks that a release is recorded as a new one if an earlier release had its id and its revision: undo
// restores the newest revision that served.
func TestReleaseIDReturns(t *testing.T) {
	t.Parallel()
	o := held("b", "c", released("r", record.Progressing, "c", "b"), recorded(
		Entry{Revision: "b", Number: 1, At: ago("3h"), Release: "r", Outcome: Promoted, Ended: ago("3h")},
		Entry{Revision: "c", Number: 2, At: ago("2h"), Release: "q", Outcome: Promoted, Ended: ago("2h")},
	))
	save, ok := reconcile(o).Action.(SaveRevision)
	e := save.Entry
	require.True(t, ok && e.Revision == "b" && e.Number == 3 && e.Outcome == "" && e.At.Equal(ago("1h")), "saved %+v", e)
	o.History[0] = save.Entry
	d := reconcile(o)
	assert.True(t, d.Action == nil, "once it is saved: %v", d.Action)
}

// From 0 groups LeaderWorkerSet starts the template in the spec: an undo restores the one before, and a release accepts the new one.
func TestUndoWithoutGroups(t *testing.T) {
	t.Parallel()
	o := held("b", "a", recorded(Entry{Revision: "a", Number: 1, At: ago("1h")}))
	o.Stable.Replicas, o.Stable.Groups = 0, nil
	if d := reconcile(o); d.Reason != ReasonScaledToZero || !strings.Contains(d.Message, "run `lockstep undo vllm -n prod --to-revision a`") {
		t.Errorf("%s: %s", d.Reason, d.Message)
	}
	if d, err := Decide(o, Undo{}); err != nil || d.Action != (RestoreTemplate{Revision: "a"}) {
		t.Errorf("an undo: %v, %v", d.Action, err)
	}
	d := must(Decide(o, Begin{ReleaseID: "r1", Policy: &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"100%"}}}))
	rec := d.Action.(SetStable).Record
	o.Record, o.Policy.Style = &rec, pb.Style_STYLE_CANARY
	if d := reconcile(o); d.State != pb.State_STATE_NOTHING_TO_RELEASE || d.Reason != ReasonNothing {
		t.Errorf("a release: %s, %s: %s", d.State, d.Reason, d.Message)
	}
}

// A repeated undo that names the template which it replaces changes nothing: its first answer may be lost. Another undo toggles.
func TestUndoIsIdempotent(t *testing.T) {
	t.Parallel()
	o := held("b", "b", recorded(Entry{Revision: "a", Number: 1}, Entry{Revision: "b", Number: 2, Release: "r1", Outcome: Promoted}))
	for _, tt := range []struct{ template, seen, restores string }{
		{"b", "b", "a"}, {"a", "b", ""}, {"a", "a", "b"}, {"a", "", "b"},
	} {
		o.Stable.Revision = tt.template
		d := must(Decide(o, Undo{Template: tt.seen}))
		a, _ := d.Action.(RestoreTemplate)
		assert.Equal(t, tt.restores, a.Revision, "template %s, and %q was seen", tt.template, tt.seen)
	}
	o.Stable.Revision = "c"
	assert.Equal(t, pb.ErrorReason_ERROR_REASON_REVISION_CHANGED, drivererr.Reason(refusal(o, Undo{Template: "b"})), "another client has changed the template")
}

// A release that was dropped, with its record, is no evidence that its revision has served. That every group runs it is.
func TestUndoNeedsEvidence(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, runs, want string
		outcome          Outcome
	}{
		{"dropped", "a", "a", ""}, {"dropped, and every group runs it", "b", "b", ""}, {"promoted", "a", "b", Promoted}, {"rolled back", "b", "a", RolledBack},
	} {
		o := held("c", tt.runs, recorded(Entry{Revision: "a", Number: 1}, Entry{Revision: "b", Number: 2, Release: "r1", Outcome: tt.outcome}))
		assert.Equal(t, RestoreTemplate{Revision: tt.want}, must(Decide(o, Undo{})).Action, tt.name)
		o.Stable.Replicas, o.Stable.Groups, o.Stable.Revision = 0, nil, "b"
		assert.Equal(t, tt.outcome != Promoted, reconcile(o).Reason == ReasonScaledToZero, "%s: without groups", tt.name)
	}
}

func refusal(o Observation, i Intent) error {
	_, err := Decide(o, i)
	return err
}

// TestHistoryKeepsRevisionsInUse checks that a revision in use is never deleted.
func TestHistoryKeepsRevisionsInUse(t *testing.T) {
	o := held("a", "b", released("r1", record.Progressing, "b", "a"))
	for _, revision := range []string{"a", "b"} {
		assert.Error(t, checkDecision(o, nil, Decision{Action: DeleteRevision{revision}}), "revision %s may be dropped", revision)
	}
	assert.NoError(t, checkDecision(o, nil, Decision{Action: DeleteRevision{"c"}}))
}

// No child waits for the history, whose writes may be refused. A DisaggregatedSet that nothing bounds yet is bounded before its template is
// restored.
func TestHistoryOfRoles(t *testing.T) {
	t.Parallel()
	o := rolesObservation(1, 1)
	o.Bounds = withUpdate(o, "new", 3)
	o.formUnits()
	d := inRoles(o, Decision{Action: DeleteRevision{Revision: "older"}})
	assert.True(t, d.Action == (ScaleChild{Name: "llm-new-prefill", Replicas: 3}), "the first write is %v", d.Action)
	o.Bounds = withUpdate(o, "new", 1)
	d = inRoles(o, Decision{Action: DeleteRevision{Revision: "older"}})
	assert.True(t, d.Action == (DeleteRevision{Revision: "older"}), "with the children as they are meant, the write is %v", d.Action)

	o = rolesObservation(0, 0)
	o.Bounds, o.Record, o.Stable.Recorded = nil, nil, []string{"old"}
	o.Children = o.Children[:2]
	for _, want := range []Action{SetBounds{}, RestoreTemplate{}} {
		u := o
		u.formUnits()
		d, err := Decide(u, Undo{Revision: "old"})
		require.True(t, err == nil && reflect.TypeOf(d.Action) == reflect.TypeOf(want), "%v, %v, want a %T", d.Action, err, want)
		if b, ok := d.Action.(SetBounds); ok {
			o.Bounds = &b.Bounds
		}
	}
}
