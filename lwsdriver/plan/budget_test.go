// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

func (c *cluster) applyBudget(a Action) bool {
	name := ""
	switch a := a.(type) {
	case SetBudget:
		name = a.Budget.Name
	case DeleteBudget:
		name = a.Name
	}
	before := slices.Clone(c.budget)
	c.budget = slices.DeleteFunc(slices.Clone(c.budget), func(b Budget) bool { return b.Name == name })
	if set, ok := a.(SetBudget); ok {
		c.budget = append(c.budget, set.Budget)
	}
	return !cmp.Equal(before, c.budget)
}

// checkBudgets: at rest a release in flight has its budgets, over all of its workloads; one that ended has none.
func (c *cluster) checkBudgets(d Decision) {
	inForce := c.policy.GroupBudget && c.record.Release != nil && (c.phase() == record.Progressing || c.rolls())
	if !inForce {
		if len(c.budget) > 0 {
			c.fail("%s with %d budgets left", d.State, len(c.budget))
		}
		return
	}
	if len(c.budget) != 2 {
		c.fail("at %s there are %d budgets", d.Reason, len(c.budget))
	}
	for _, b := range c.budget {
		most := 1
		if !b.Workers {
			most = Tolerated(c.userRolling, c.stable.replicas)
		}
		if len(b.Workloads) != 1+len(c.added) || b.MaxUnavailable != most {
			c.fail("at %s, with %d canaries, there is %+v", d.Reason, len(c.added), b)
		}
	}
}

func TestTolerated(t *testing.T) {
	for _, tt := range []struct {
		unavailable    string
		replicas, want int
	}{{"1", 4, 1}, {"2", 4, 2}, {"50%", 5, 2}, {"0", 4, 1}, {"10%", 4, 1}, {"100%", 4, 4}, {"1", 0, 1}} {
		if got := Tolerated(rollingOf(0, tt.unavailable, "1"), tt.replicas); got != tt.want {
			t.Errorf("%s of %d: %d, want %d", tt.unavailable, tt.replicas, got, tt.want)
		}
	}
}
