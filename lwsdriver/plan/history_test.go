// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// held is a workload at rest: its groups run one revision, and its template is another or the same.
func held(template string, runs string, change ...func(*Observation)) Observation {
	o := Observation{
		Now: noon, Record: &record.Record{Saved: record.Native(record.Hold())}, HistoryLimit: 3,
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

// TestHistory checks the next write, and the state meanwhile.
func TestHistory(t *testing.T) {
	base := Entry{Revision: "a", Number: 1, At: ago("2h")}
	second := Entry{Revision: "b", Number: 2, At: ago("1h"), By: "kubectl-edit", Release: "r1", Owner: "jo"}
	with := func(e Entry, f func(*Entry)) Entry { f(&e); return e }
	promoted := with(second, func(e *Entry) { e.Outcome, e.Ended = Promoted, noon })
	for _, tt := range []struct {
		reason string
		look   Observation
		want   Action
		state  pb.State
	}{
		{"what the groups run comes first", held("a", "a"), SaveRevision{Entry{Revision: "a", Number: 1, At: noon, By: "kubectl-edit"}}, pb.State_STATE_HOLDING},
		{
			"the author of a template that is not in the spec is unknown", held("b", "a"),
			SaveRevision{Entry{Revision: "a", Number: 1, At: noon}}, pb.State_STATE_HOLDING,
		},
		{"a template that waits has not been served", held("b", "a", recorded(base)), nil, pb.State_STATE_HOLDING},
		{
			"a release adds its revision", held("b", "a", recorded(base), released("r1", record.Progressing, "a", "b")),
			SaveRevision{second}, pb.State_STATE_HOLDING,
		},
		{
			"once", held("b", "a", recorded(base, second), released("r1", record.Progressing, "a", "b")), nil, pb.State_STATE_HOLDING,
		},
		{
			"a release of nothing adds none", held("a", "a", recorded(base), released("r1", record.Nothing, "a", "a")),
			nil, pb.State_STATE_NOTHING_TO_RELEASE,
		},
		{
			"it is over once its end is written", held("b", "b", recorded(base, second), released("r1", record.Promoted, "a", "b")),
			SaveRevision{promoted}, pb.State_STATE_PROMOTING,
		},
		{
			"and not before", held("b", "b", recorded(base, promoted), released("r1", record.Promoted, "a", "b")),
			nil, pb.State_STATE_COMPLETED,
		},
		{
			"back again", held("b", "a", recorded(base, second), released("r1", record.CleaningUp, "a", "b")),
			SaveRevision{with(second, func(e *Entry) { e.Outcome, e.Ended = RolledBack, noon })}, pb.State_STATE_ROLLING_BACK,
		},
		{
			"a history that can't be written blocks nothing",
			held("b", "b", recorded(base, second), released("r1", record.Promoted, "a", "b"), func(o *Observation) { o.HistoryUnread = true }),
			nil, pb.State_STATE_COMPLETED,
		},
		{
			"an older revision is released again under a new number", held("a", "b", recorded(base, promoted), released("r2", record.Progressing, "b", "a")),
			SaveRevision{Entry{Revision: "a", Number: 3, At: ago("1h"), By: "kubectl-edit", Release: "r2", Owner: "jo"}}, pb.State_STATE_HOLDING,
		},
		{
			"a second try keeps the number", held("b", "a", recorded(base, with(promoted, func(e *Entry) { e.Outcome = RolledBack })), released("r2", record.Progressing, "a", "b")),
			SaveRevision{with(second, func(e *Entry) { e.Release = "r2" })}, pb.State_STATE_HOLDING,
		},
		{
			"a revision that was replaced in mid-release was rolled back",
			held("c", "a", recorded(base, second), released("r1", record.Progressing, "a", "c")),
			SaveRevision{with(second, func(e *Entry) { e.Outcome, e.Ended = RolledBack, noon })}, pb.State_STATE_HOLDING,
		},
		{
			"an end that was not observed stays unknown", held("c", "a", recorded(base, second), released("r9", record.Nothing, "a", "c")),
			nil, pb.State_STATE_NOTHING_TO_RELEASE,
		},
		{
			"a template that LWS has deleted can't be saved",
			held("c", "a", recorded(base), released("r1", record.CleaningUp, "a", "b")), nil, pb.State_STATE_ROLLED_BACK,
		},
		{
			"an edited entry is not overwritten",
			held("b", "b", recorded(base, with(second, func(e *Entry) { e.Problem = "edited" })), released("r1", record.Promoted, "a", "b")),
			nil, pb.State_STATE_COMPLETED,
		},
		{
			"the oldest above the limit is deleted", held("d", "d", recorded(
				Entry{Revision: "x", Number: 5, Problem: "edited"}, Entry{Revision: "b", Number: 2}, Entry{Revision: "c", Number: 3},
				Entry{Revision: "a", Number: 1}, Entry{Revision: "d", Number: 4})),
			DeleteRevision{"a"}, pb.State_STATE_HOLDING,
		},
		{
			"but nothing that is in use", held("a", "b", func(o *Observation) { o.HistoryLimit = 1 }, recorded(
				Entry{Revision: "a", Number: 1}, Entry{Revision: "b", Number: 2}, Entry{Revision: "c", Number: 3})),
			DeleteRevision{"c"}, pb.State_STATE_HOLDING,
		},
		{"no history", held("a", "a", func(o *Observation) { o.HistoryLimit = 0 }), nil, pb.State_STATE_HOLDING},
		{
			"none any more", held("a", "a", recorded(base), func(o *Observation) { o.HistoryLimit = 0 }),
			DeleteRevision{"a"}, pb.State_STATE_HOLDING,
		},
		{"a workload that is not adopted has none", held("a", "a", func(o *Observation) { o.Record = nil }), nil, pb.State_STATE_UNMANAGED},
	} {
		d := reconcile(tt.look)
		if diff := cmp.Diff(tt.want, d.Action); diff != "" || d.State != tt.state {
			t.Errorf("%s: state %v (%s), want %v; action (-want +got):\n%s", tt.reason, d.State, d.Reason, tt.state, diff)
		}
	}
}

// TestHistoryKeepsRevisionsInUse checks that a revision in use is never deleted.
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
		if err := refusal(o, intent); err != nil {
			t.Errorf("%s after the outcome was saved: %v", name, err)
		}
	}
}

// From 0 groups LeaderWorkerSet starts the template in the spec: an undo restores the one before, and a release accepts the new one.
func TestUndoWithoutGroups(t *testing.T) {
	t.Parallel()
	o := held("b", "a", recorded(Entry{Revision: "a", Number: 1, At: ago("1h")}))
	o.Stable.Replicas, o.Stable.Groups = 0, nil
	if d := reconcile(o); d.Reason != ReasonScaledToZero || !strings.Contains(d.Message, "run `lockstep undo vllm --to-revision a`") {
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

func refusal(o Observation, i Intent) error {
	_, err := Decide(o, i)
	return err
}

func TestHistoryKeepsRevisionsInUse(t *testing.T) {
	o := held("a", "b", released("r1", record.Progressing, "b", "a"))
	for _, revision := range []string{"a", "b"} {
		if checkDecision(o, nil, Decision{Action: DeleteRevision{revision}}) == nil {
			t.Errorf("revision %s may be dropped", revision)
		}
	}
	if err := checkDecision(o, nil, Decision{Action: DeleteRevision{"c"}}); err != nil {
		t.Error(err)
	}
}

// No child waits for the history, whose writes may be refused. A DisaggregatedSet that nothing bounds yet is bounded before its template is
// restored.
func TestHistoryOfRoles(t *testing.T) {
	t.Parallel()
	o := rolesObservation(1, 1)
	o.Bounds = withUpdate(o, "new", 3)
	o.unite()
	if d := inRoles(o, Decision{Action: DeleteRevision{Revision: "older"}}); d.Action != (ScaleChild{Name: "llm-new-prefill", Replicas: 3}) {
		t.Errorf("the first write is %v", d.Action)
	}
	o.Bounds = withUpdate(o, "new", 1)
	if d := inRoles(o, Decision{Action: DeleteRevision{Revision: "older"}}); d.Action != (DeleteRevision{Revision: "older"}) {
		t.Errorf("with the children as they are meant, the write is %v", d.Action)
	}

	o = rolesObservation(0, 0)
	o.Bounds, o.Record, o.Stable.Recorded = nil, nil, []string{"old"}
	o.Children = o.Children[:2]
	for _, want := range []Action{SetBounds{}, RestoreTemplate{}} {
		u := o
		u.unite()
		d, err := Decide(u, Undo{Revision: "old"})
		if err != nil || reflect.TypeOf(d.Action) != reflect.TypeOf(want) {
			t.Fatalf("%v, %v, want a %T", d.Action, err, want)
		}
		if b, ok := d.Action.(SetBounds); ok {
			o.Bounds = &b.Bounds
		}
	}
}
