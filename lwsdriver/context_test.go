// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func TestDescribeRequestedState(t *testing.T) {
	t.Parallel()
	s := newFixture(t, lwstest.InPhase(t, record.Progressing)).look()
	routed := plan.Decision{Deadline: lwstest.Noon.Add(time.Hour), Progress: plan.Progress{Weight: 10, Routed: true}}
	c := describeWorkload(s, routed)
	batches := []*pb.Batch{{Target: "25%", Groups: 1}, {Target: "50%", Groups: 2}, {Target: "100%", Groups: 4}}
	assert.Empty(t, cmp.Diff(batches, c.GetBatchPlan(), protocmp.Transform()), "batches at %d replicas: -want, +got", c.GetReplicas())
	assert.True(t, c.GetDeadline().AsTime().Equal(lwstest.Noon.Add(time.Hour)), "deadline %v", c.GetDeadline())
	assert.True(t, c.RequestedWeight != nil && c.GetRequestedWeight() == 0, "a host that requested nothing has %v, not 0", c.RequestedWeight)
	s.StableObject.Status.ObservedGeneration = 7
	c = describeWorkload(s, routed)
	assert.Equal(t, int64(7), c.GetObservedGeneration(), "LWS has observed generation 7, the context")
	s.Record.Release.Traffic = &record.Traffic{Weight: 25}
	if c = describeWorkload(s, routed); c.GetRequestedWeight() != 25 || c.GetTrafficWeight() != 10 {
		t.Errorf("requested %d, reached %d", c.GetRequestedWeight(), c.GetTrafficWeight())
	}
	if c = describeWorkload(s, plan.Decision{}); c.RequestedWeight != nil || c.Deadline != nil {
		t.Errorf("not routed, and waiting for nothing: requested %v, deadline %v", c.RequestedWeight, c.GetDeadline())
	}
	s.Record.Release.Phase = record.Promoting
	c = describeWorkload(s, routed)
	assert.Nil(t, c.RequestedWeight, "from Finalize on the driver decides, and yet %d is requested", c.GetRequestedWeight())
}

// An edited annotation is reported and ignored; the release can be ended anyway.
func TestInvalidTargetIsIgnored(t *testing.T) {
	for value, want := range map[string]string{
		`{"groups":"50%","at":"2026-11-20T12:00:00Z"}`:           "50%",
		`{"groups":"50%","batch":2,"at":"2026-11-20T12:00:00Z"}`: "50%",
		`{"groups":"50%","batch":3,"at":"2026-11-20T12:00:00Z"}`: "",
		`{"groups":"many"}`: "",
		`half`:              "",
	} {
		stable := lwstest.InPhase(t, record.Progressing)
		c := lwstest.Canary(t, stable)
		c.Annotations[record.TargetAnnotation] = value
		b := newFixture(t, stable, c)
		s := b.look()
		trusted := want != ""
		if !trusted {
			want = "1" // what it is scaled to
		}
		got := s.Added[0].Target
		assert.True(t, got != nil && got.Groups == want, "%s: target %+v, want %s", value, got, want)
		d := describeWorkload(s, lwstest.Decide(t, s.Observation))
		assert.NotEqual(t, trusted, strings.Contains(d.GetMessage(), "can't be trusted"), "%s: the message is %q", value, d.GetMessage())
		assert.False(t, d.CurrentBatch != nil && d.GetCurrentBatch() >= d.GetBatches(),
			"%s: batch %d of %d", value, d.GetCurrentBatch(), d.GetBatches())
	}
}

// A pod that was copied, labels and all, is one more than its group can have. Hosts would refuse the whole answer.
func TestGroupRowReadyPodsAtMostSize(t *testing.T) {
	row := groupRow(plan.Group{Pods: 2, ReadyPods: 3, Ready: true}, pb.GroupRole_GROUP_ROLE_STABLE, true)
	assert.Equal(t, int32(2), row.GetReadyPods(), "%d of %d pods are ready", row.GetReadyPods(), row.GetPods())
}

// In style partition an old unit that a new one has replaced has no row; in a rollback it has one again, with the name of its child.
func TestReplacedUnitsHaveNoRows(t *testing.T) {
	for phase, want := range map[record.Phase][]string{
		record.Progressing: {"llm-a-prefill-0", "llm-b-prefill-0"},
		record.RollingBack: {"llm-a-prefill-0", "llm-a-prefill-1", "llm-a-prefill-2", "llm-b-prefill-0"},
	} {
		s := &observe.Snapshot{Observation: plan.Observation{
			Roles:  []plan.Role{{Name: "prefill", Replicas: 3}},
			Policy: record.Policy{Style: pb.Style_STYLE_PARTITION},
			Record: &record.Record{Release: &record.Release{Phase: phase, StableRevision: "a", UpdateRevision: "b"}},
			Stable: plan.Workload{
				Name: "llm", Revision: "b", Replicas: 3, Parts: []plan.Part{{Child: "llm-a-prefill", Groups: 3}},
				Groups: []plan.Group{{Leader: "llm-a-prefill-0", Revision: "a"}},
			},
			Added: []plan.Workload{{Name: "llm-b", Replicas: 1, Groups: []plan.Group{{Leader: "llm-b-prefill-0", Revision: "b"}}}},
		}}
		c := &pb.BatchContext{}
		addGroups(c, s, maxGroupRows)
		var got []string
		for _, g := range c.GetGroups() {
			got = append(got, g.GetLeader())
		}
		assert.Equal(t, want, got, phase)
		assert.Zero(t, c.GetGroupsOmitted(), phase)
	}
}

// A row says since when its group has been as it is: ready, or not.
func TestGroupRowSince(t *testing.T) {
	ready, lost := lwstest.Noon.Add(-time.Minute), lwstest.Noon.Add(-time.Hour)
	for name, tt := range map[string]struct {
		group plan.Group
		want  time.Time
	}{
		"ready":         {plan.Group{Ready: true, ReadySince: ready}, ready},
		"ready anew":    {plan.Group{Ready: true, ReadySince: ready, LostAt: lost}, ready},
		"lost":          {plan.Group{LostAt: lost}, lost},
		"never started": {plan.Group{}, time.Time{}},
	} {
		since := groupRow(tt.group, pb.GroupRole_GROUP_ROLE_STABLE, false).GetSince()
		assert.False(t, since == nil != tt.want.IsZero() || since != nil && !since.AsTime().Equal(tt.want),
			"%s: since %v, want %v", name, since, tt.want)
	}
}
