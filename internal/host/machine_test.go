// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	promote  = pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE
	rollback = pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK
)

var noon = time.Date(2026, time.January, 2, 12, 0, 0, 0, time.UTC)

// released is a context of a release, whose template is at the update revision.
func released(c *pb.BatchContext) *pb.BatchContext {
	c.ReleaseId, c.TemplateRevision = "r1", c.GetUpdateRevision()
	return c
}

// at is a context at a batch; a negative one is none.
func at(state pb.State, batch int32, revision string) *pb.BatchContext {
	c := &pb.BatchContext{State: state, Reason: "R", Message: "m", UpdateRevision: revision}
	if batch >= 0 {
		c.CurrentBatch = proto.Int32(batch)
	}
	return c
}

func threeBatches() machine {
	return machine{batches: []string{"25%", "50%", "100%"}}
}

// routedAt is at, with as many of 4 groups planned as the batch says, and a weight in the routes.
func routedAt(state pb.State, batch, weight int32, revision string) *pb.BatchContext {
	c := at(state, batch, revision)
	c.Replicas, c.Planned = 4, []int32{0, 1, 2, 4}[batch+1]
	c.TrafficWeight, c.TrafficBasis = weight, pb.TrafficBasis_TRAFFIC_BASIS_ROUTED
	return c
}

// routing is set in machines whose batches have weights.
func routing(more func(m *machine)) func(m *machine) {
	return func(m *machine) {
		m.routed, m.requested, m.revision = true, true, "b"
		if more != nil {
			more(m)
		}
	}
}

func TestNext(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason  string
		machine func(m *machine)
		context *pb.BatchContext
		want    step
	}{
		"FreshRelease": {
			"an initialised release waits for its first batch", nil,
			at(pb.State_STATE_HOLDING, -1, "b"), step{action: actUpgrade, batch: 0},
		},
		"Preparing": {
			"Initialize is asked for until the canary is there", nil,
			at(pb.State_STATE_PREPARING, -1, ""), step{action: actInitialize},
		},
		"ResumeUpgrading": {
			"a host that was killed goes on where the release stands", nil,
			at(pb.State_STATE_UPGRADING, 1, "b"), step{action: actUpgrade, batch: 1},
		},
		"ResumeReady": {
			"the batch is asked for before its readiness is believed", nil,
			at(pb.State_STATE_READY, 1, "b"), step{action: actUpgrade, batch: 1},
		},
		"BatchReady": {
			"the next batch follows", func(m *machine) { m.requested, m.revision = true, "b" },
			at(pb.State_STATE_READY, 0, "b"), step{action: actUpgrade, batch: 1},
		},
		"StaleReady": {
			"readiness of an earlier batch says nothing about this one", func(m *machine) { m.requested, m.revision, m.cursor = true, "b", 1 },
			at(pb.State_STATE_READY, 0, "b"), step{action: actUpgrade, batch: 1},
		},
		"AbsoluteTarget": {
			"another host's target that is no batch counts as the batch that was asked for", func(m *machine) { m.requested, m.revision = true, "b" },
			at(pb.State_STATE_READY, -1, "b"), step{action: actUpgrade, batch: 1},
		},
		"Pause": {
			"a ready batch stays for the pause", func(m *machine) { m.requested, m.revision, m.Pause = true, "b", time.Minute },
			at(pb.State_STATE_READY, 0, "b"), step{action: actPause, batch: 0, until: noon.Add(time.Minute)},
		},
		"LastBatchHasNoPause": {
			"the pause is between batches", func(m *machine) { m.requested, m.revision, m.Pause = true, "b", time.Minute },
			at(pb.State_STATE_READY, 2, "b"), step{action: actPromote},
		},
		"NoPromote": {
			"the host was told to stop before the promotion", func(m *machine) { m.requested, m.revision, m.NoPromote = true, "b", true },
			at(pb.State_STATE_READY, 2, "b"), step{action: actStop, outcome: OutcomeLastBatch},
		},
		"HeaderRoutes": {
			"requests with the header get the update revision before others do", routing(func(m *machine) { m.HeaderRoutes = []HeaderRoute{{Name: "a"}} }),
			routedAt(pb.State_STATE_READY, 0, 0, "b"), step{action: actHeaders, batch: 0},
		},
		"HeaderRoutesOnce": {
			"they stay for the whole release", routing(func(m *machine) { m.HeaderRoutes, m.headersSet = []HeaderRoute{{Name: "a"}}, true }),
			routedAt(pb.State_STATE_READY, 0, 0, "b"), step{action: actWeight, batch: 0, weight: 25},
		},
		"HeaderRoutesOfTheOldTemplate": {
			reason: "a new template ends them: no request may get it before its first batch is ready",
			machine: routing(func(m *machine) {
				m.HeaderRoutes, m.headersSet, m.revision, m.requested = []HeaderRoute{{Name: "a"}}, true, "a", true
			}),
			context: routedAt(pb.State_STATE_READY, 0, 0, "b"),
			want:    step{action: actUpgrade, batch: 0},
		},
		"Weight": {
			"a batch whose groups are ready gets its share of requests first", routing(nil),
			routedAt(pb.State_STATE_READY, 0, 0, "b"), step{action: actWeight, batch: 0, weight: 25},
		},
		"WeightInForce": {
			"groups and requests are as they should be", routing(nil),
			routedAt(pb.State_STATE_READY, 0, 25, "b"), step{action: actUpgrade, batch: 1},
		},
		"WeightNotInForceYet": {
			"the driver is asked until the batch is ready again, not for another weight", routing(nil),
			routedAt(pb.State_STATE_VERIFYING, 0, 25, "b"), step{action: actUpgrade, batch: 0},
		},
		"WeightOfCounts": {
			reason:  "a share that follows group counts is in no route, even if the number is right",
			machine: routing(nil),
			context: func() *pb.BatchContext {
				c := routedAt(pb.State_STATE_READY, 0, 25, "b")
				c.TrafficBasis = pb.TrafficBasis_TRAFFIC_BASIS_GROUP_COUNTS
				return c
			}(),
			want: step{action: actWeight, batch: 0, weight: 25},
		},
		"WeightGiven": {
			"the host was told which", routing(func(m *machine) { m.Weights = []int32{10, 40, 100} }),
			routedAt(pb.State_STATE_READY, 1, 10, "b"), step{action: actWeight, batch: 1, weight: 40},
		},
		"WeightWithoutGroups": {
			reason:  "a batch of 0 groups can serve no request, whatever it was given",
			machine: routing(func(m *machine) { m.Weights = []int32{10, 40, 100} }),
			context: func() *pb.BatchContext {
				c := routedAt(pb.State_STATE_READY, 0, 0, "b")
				c.Planned = 0
				return c
			}(),
			want: step{action: actUpgrade, batch: 1},
		},
		"WeightOfAResumedRun": {
			"a run that finds the release further on asks for no weight of an earlier batch", func(m *machine) { m.routed = true },
			routedAt(pb.State_STATE_UPGRADING, 1, 25, "b"), step{action: actUpgrade, batch: 1},
		},
		"WeightOfAResumedReadyRun": {
			"what is in force is not asked for again", routing(func(m *machine) { m.Pause = time.Minute }),
			routedAt(pb.State_STATE_READY, 1, 50, "b"), step{action: actPause, batch: 1, until: noon.Add(time.Minute)},
		},
		"WeightBeforeThePause": {
			"the pause begins when requests go where they should", routing(func(m *machine) { m.Pause = time.Minute }),
			routedAt(pb.State_STATE_READY, 0, 0, "b"), step{action: actWeight, batch: 0, weight: 25},
		},
		"WeightBeforeThePromotion": {
			"the last batch serves before it is promoted", routing(nil),
			routedAt(pb.State_STATE_READY, 2, 50, "b"), step{action: actWeight, batch: 2, weight: 100},
		},
		"WeightOfTheOldTemplate": {
			"a new template starts over, whatever its weights", routing(func(m *machine) { m.revision, m.cursor = "a", 2 }),
			routedAt(pb.State_STATE_READY, 2, 100, "b"), step{action: actUpgrade, batch: 0},
		},
		"WeightOfAnEnd": {
			"the driver gives the requests back by itself", routing(func(m *machine) { m.intent = rollback }),
			routedAt(pb.State_STATE_ROLLING_BACK, 1, 50, "b"), step{action: actRollback},
		},
		"NewTemplate": {
			"what was ready was the old template", func(m *machine) { m.requested, m.revision, m.cursor = true, "a", 2 },
			at(pb.State_STATE_READY, 2, "b"), step{action: actUpgrade, batch: 0},
		},
		"NewTemplateWhilePromoting": {
			reason: "a promotion that the driver does not know of must not promote an unverified revision",
			machine: func(m *machine) {
				m.requested, m.revision, m.cursor = true, "a", 2
				m.intent = promote
			},
			context: at(pb.State_STATE_HOLDING, -1, "b"),
			want:    step{action: actUpgrade, batch: 0},
		},
		"NewTemplateEndOnly": {
			reason: "a run that only promotes has no batches to start again with",
			machine: func(m *machine) {
				m.requested, m.revision, m.endOnly = true, "a", true
				m.intent = promote
			},
			context: released(at(pb.State_STATE_HOLDING, -1, "b")),
			want:    step{action: actStop, outcome: OutcomeSuperseded},
		},
		"RevisionUnknown": {
			"an empty revision is no new one", func(m *machine) { m.requested, m.revision, m.cursor = true, "a", 1 },
			at(pb.State_STATE_UPGRADING, 1, ""), step{action: actUpgrade, batch: 1},
		},
		"Failed": {
			"by default a failure is left to a person", nil,
			at(pb.State_STATE_FAILED, 0, "b"), step{action: actStop, outcome: OutcomeFailed},
		},
		"FailedRollback": {
			"the host was told to roll back", func(m *machine) { m.OnFailure = OnFailureRollback },
			at(pb.State_STATE_FAILED, 0, "b"), step{action: actRollback},
		},
		"FailedWait": {
			"the host was told to see it out", func(m *machine) { m.OnFailure = OnFailureWait },
			at(pb.State_STATE_FAILED, 1, "b"), step{action: actUpgrade, batch: 1},
		},
		"FailedPromotion": {
			"a promotion that got stuck can't be rolled back, whatever the setting", func(m *machine) { m.intent, m.requested, m.OnFailure = promote, true, OnFailureRollback },
			at(pb.State_STATE_FAILED, 2, "b"), step{action: actStop, outcome: OutcomeFailed},
		},
		"EndOfAFailedRelease": {
			"a failed release is what aborts are for", func(m *machine) { m.intent, m.endOnly = rollback, true },
			at(pb.State_STATE_FAILED, 0, "b"), step{action: actRollback},
		},
		"RollingBackByOthers": {
			"an end that another host chose is followed", nil,
			at(pb.State_STATE_ROLLING_BACK, 1, "b"), step{action: actRollback},
		},
		"PromotingByOthers": {
			"an end that another host chose is followed", nil,
			at(pb.State_STATE_PROMOTING, 2, "b"), step{action: actPromote},
		},
		"PromotingTakenBack": {
			"a promotion may be taken back until it is over", func(m *machine) { m.intent = pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK },
			at(pb.State_STATE_PROMOTING, 2, "b"), step{action: actRollback},
		},
		"PromotingTakenBackTooLate": {
			"it is too late, so the end that another host chose is followed", func(m *machine) { m.intent, m.endOnly, m.rollbackTried = rollback, true, true },
			at(pb.State_STATE_PROMOTING, 2, "b"), step{action: actPromote},
		},
		"Completed": {
			"the same command again finds its work done", nil,
			at(pb.State_STATE_COMPLETED, 2, "b"), step{action: actStop, outcome: OutcomePromoted},
		},
		"RolledBack": {
			"the end was backwards", nil,
			at(pb.State_STATE_ROLLED_BACK, 2, "b"), step{action: actStop, outcome: OutcomeRolledBack},
		},
		"Nothing": {
			"there is nothing to release", nil,
			at(pb.State_STATE_NOTHING_TO_RELEASE, -1, ""), step{action: actStop, outcome: OutcomeNothing},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := threeBatches()
			if tc.machine != nil {
				tc.machine(&m)
			}
			got := m.next(tc.context, noon)
			got.notes = nil
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(step{}, note{})); diff != "" {
				t.Errorf("%s: next(...): -want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestPauseRestartsWhenTheBatchDoes(t *testing.T) {
	t.Parallel()
	m := threeBatches()
	m.requested, m.Pause = true, time.Minute
	for i, tc := range []struct {
		state pb.State
		after time.Duration
		want  action
	}{
		{pb.State_STATE_READY, 0, actPause},
		{pb.State_STATE_READY, 59 * time.Second, actPause},
		{pb.State_STATE_UPGRADING, 59 * time.Second, actUpgrade},
		{pb.State_STATE_READY, 61 * time.Second, actPause},
		{pb.State_STATE_READY, 121 * time.Second, actUpgrade},
	} {
		if got := m.next(at(tc.state, 0, "b"), noon.Add(tc.after)); got.action != tc.want {
			t.Errorf("step %d: next(%s after %s) = action %d, want %d", i, tc.state, tc.after, got.action, tc.want)
		}
	}
	if m.cursor != 1 {
		t.Errorf("cursor = %d after the pause, want 1", m.cursor)
	}
}

// The pause also precedes the promotion, unless the last batch has all groups already, or there is no promotion.
func TestPauseBeforeThePromotion(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		planned   int32
		noPromote bool
		want      [2]action // when the batch is ready, and after the pause
	}{
		"one group of four": {1, false, [2]action{actPause, actPromote}},
		"all groups":        {4, false, [2]action{actPromote, actPromote}},
		"not promoted":      {1, true, [2]action{actStop, actStop}},
	} {
		m := machine{batches: []string{"1"}, requested: true, Release: Release{Pause: time.Minute, NoPromote: tc.noPromote}}
		c := at(pb.State_STATE_READY, 0, "b")
		c.Replicas, c.Planned = 4, tc.planned
		for i, after := range []time.Duration{0, 61 * time.Second} {
			if got := m.next(c, noon.Add(after)); got.action != tc.want[i] {
				t.Errorf("%s: action %d after %s, want %d", name, got.action, after, tc.want[i])
			}
		}
	}
}

func TestPauseRestartsWhenTheWeightDoes(t *testing.T) {
	t.Parallel()
	m := threeBatches()
	m.routed, m.requested, m.Pause = true, true, time.Minute
	for i, tc := range []struct {
		weight int32
		after  time.Duration
		want   action
	}{
		{0, 0, actWeight},
		{25, 10 * time.Second, actPause},
		// The user scaled the workload, which changes the batch's share.
		{20, 69 * time.Second, actWeight},
		{25, 71 * time.Second, actPause},
		{25, 130 * time.Second, actPause},
		{25, 131 * time.Second, actUpgrade},
	} {
		c := routedAt(pb.State_STATE_READY, 0, tc.weight, "b")
		if got := m.next(c, noon.Add(tc.after)); got.action != tc.want {
			t.Errorf("step %d: next(weight %d after %s) = action %d, want %d", i, tc.weight, tc.after, got.action, tc.want)
		}
	}
}

func TestShare(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ part, whole, want int32 }{
		{1, 4, 25}, {1, 3, 34}, {2, 3, 67}, {3, 3, 100}, {1, 1000, 1}, {5, 4, 100}, {1 << 30, 1<<31 - 1, 51},
	} {
		if got := share(tc.part, tc.whole); got != tc.want {
			t.Errorf("share(%d, %d) = %d, want %d", tc.part, tc.whole, got, tc.want)
		}
	}
}

func TestNotesAreSaidOnce(t *testing.T) {
	t.Parallel()
	m := threeBatches()
	m.requested, m.Pause, m.OnFailure = true, time.Minute, OnFailureWait
	var kinds []EventKind
	for _, state := range []pb.State{
		pb.State_STATE_UPGRADING, pb.State_STATE_UPGRADING, pb.State_STATE_FAILED, pb.State_STATE_FAILED,
		pb.State_STATE_UPGRADING, pb.State_STATE_READY, pb.State_STATE_UPGRADING, pb.State_STATE_READY,
		pb.State_STATE_PROMOTING, pb.State_STATE_PROMOTING,
	} {
		for _, n := range m.next(at(state, 0, "b"), noon).notes {
			kinds = append(kinds, n.kind)
		}
	}
	want := []EventKind{EventBatchStarted, EventFailed, EventBatchReady, EventPause, EventPromoting}
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Errorf("notes: -want, +got:\n%s", diff)
	}
}

func TestAWeightIsSaidOncePerBatch(t *testing.T) {
	t.Parallel()
	m := threeBatches()
	m.routed, m.requested, m.Weights = true, true, []int32{50, 50, 100}
	var said []string
	for _, c := range []*pb.BatchContext{
		routedAt(pb.State_STATE_UPGRADING, 0, 0, "b"),
		routedAt(pb.State_STATE_READY, 0, 0, "b"), routedAt(pb.State_STATE_VERIFYING, 0, 50, "b"),
		routedAt(pb.State_STATE_READY, 0, 0, "b"), routedAt(pb.State_STATE_READY, 0, 50, "b"),
		// Another client changed the weight, which is restored.
		routedAt(pb.State_STATE_READY, 1, 60, "b"), routedAt(pb.State_STATE_READY, 1, 60, "b"),
	} {
		for _, n := range m.next(c, noon).notes {
			said = append(said, string(n.kind)+": "+n.message)
		}
		m.requested = true
	}
	want := []string{
		"batch-started: moving to batch 1/3 (25%)",
		"weight: sending 50% of the requests to the update revision", "batch-ready: batch 1/3 (25%) is ready",
		"batch-started: moving to batch 2/3 (50%)", "weight: sending 50% of the requests to the update revision",
	}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Errorf("notes: -want, +got:\n%s", diff)
	}
}
