// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"testing"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// applyLabel labels the present pods of the group, if they are at the expected revision.
func (c *cluster) applyLabel(a LabelGroup) bool {
	for _, s := range append([]*set{c.stable}, c.added...) {
		g := s.groups[a.Group]
		if s.name != a.Name || g == nil || g.revision != a.Revision || g.mark == a.Mark {
			continue
		}
		g.mark = a.Mark
		return true
	}
	return false
}

// checkLabel: no group that the release has not updated is labelled.
func (c *cluster) checkLabel(a Action) {
	if a, ok := a.(LabelGroup); ok && a.Name == c.stable.name && a.Revision == c.record.Release.StableRevision {
		c.fail("%s, which is at the stable revision", a)
	}
}

// checkLabels: at rest every updated group has its label, and no other label of this rollout.
func (c *cluster) checkLabels(d Decision) {
	if c.policy.RolloutID == "" || c.record.Release == nil {
		return
	}
	r := c.record.Release
	for _, s := range append([]*set{c.stable}, c.added...) {
		for i, g := range s.groups {
			updated := s != c.stable && d.State == pb.State_STATE_READY && g.revision == s.made ||
				s == c.stable && r.Phase == record.Promoted && g.revision == r.UpdateRevision && g.ready && !g.since.After(r.PhaseAt)
			if updated && i < s.replicas && (g.mark.ID != "k" || g.mark.Batch < 1 || g.mark.Batch > 3) {
				c.fail("at %s group %d of %s is labelled %+v", d.Reason, i, s.name, g.mark)
			}
		}
	}
}

// TestMark checks batch numbers. Canary groups count from the lowest index, the workload's own from the highest, in the
// order of their update; the batch is the first that includes the group.
func TestMark(t *testing.T) {
	for _, tt := range []struct {
		replicas int
		batches  []string
		want     string
	}{
		{4, []string{"25%", "50%", "100%"}, "[1 2 3 3]"},
		{8, []string{"25%", "50%", "100%"}, "[1 1 2 2 3 3 3 3]"},
		{3, []string{"1", "1", "3"}, "[1 3 3]"},
		{3, []string{"0", "3"}, "[2 2 2]"},
		{4, []string{"25%"}, "[1 1 1 1]"},
		{1, []string{"25%", "100%"}, "[1]"},
		{4, []string{"2", "3"}, "[1 1 2 2]"},
	} {
		o := Observation{Stable: Workload{Replicas: tt.replicas}, Policy: record.Policy{RolloutID: "k"}}
		for _, b := range tt.batches {
			o.Policy.Batches = append(o.Policy.Batches, quantity(b))
		}
		var got []int
		for i := range tt.replicas {
			got = append(got, o.mark(Group{Index: i}, i).Batch)
		}
		if fmt.Sprint(got) != tt.want {
			t.Errorf("%d groups in batches %v: %v, want %s", tt.replicas, tt.batches, got, tt.want)
		}
	}
}
