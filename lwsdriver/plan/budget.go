// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// Budget is a PodDisruptionBudget that counts groups, over the user's workload and what the release adds to it.
type Budget struct {
	Name string
	// Workers: it selects workers. Otherwise leaders, of which each group has one.
	Workers bool
	// Workloads are selected, in order.
	Workloads []string
	// MaxUnavailable of the pods may be away.
	MaxUnavailable int
}

// SetBudget makes a budget, or puts it right.
type SetBudget struct{ Budget Budget }

// DeleteBudget removes one.
type DeleteBudget struct{ Name string }

func (SetBudget) action()    {}
func (DeleteBudget) action() {}

func (a SetBudget) String() string {
	return fmt.Sprintf("let %d at once be evicted through %s, of %v", a.Budget.MaxUnavailable, a.Budget.Name, a.Budget.Workloads)
}
func (a DeleteBudget) String() string { return "remove " + a.Name }

// Reasons that have to do with budgets.
const (
	ReasonBudgetGoing   = "DisruptionBudgetGoing"
	ReasonBudgetsUnread = "DisruptionBudgetsNotSynced"
)

// Tolerated is how many groups the user lets be away at once, at least one: a budget of none could never be kept.
func Tolerated(saved rolling, replicas int) int {
	return max(scaled(saved.MaxUnavailable, replicas, false), 1)
}

// keepBudgets keeps the release's budgets in force while it lasts, and leaves none. What moves groups comes first.
func keepBudgets(o Observation, d Decision) Decision {
	if d.Action != nil || o.Stable.Deleting || d.Reason == ReasonStyleNotSupported {
		return d // with the workload go its budgets; and what is another driver's is left to it
	}
	want := budgets(o)
	ends := func(reason, message string) Decision {
		if len(want) == 0 && cleanUpState(d.State) != d.State {
			d.State, d.Reason, d.Message = cleanUpState(d.State), reason, message
		}
		return d
	}
	if o.BudgetsUnread {
		return ends(ReasonBudgetsUnread, "the caches do not tell yet whether a PodDisruptionBudget is left")
	}
	for _, have := range o.Budgets {
		if !slices.ContainsFunc(want, func(w Budget) bool { return w.Name == have.Name }) {
			d.Action = DeleteBudget{Name: have.Name}
			return ends(ReasonBudgetGoing, have.Name+" is going")
		}
	}
	for _, w := range want {
		if !slices.ContainsFunc(o.Budgets, w.same) {
			d.Action = SetBudget{w}
			break
		}
	}
	return d
}

func (b Budget) same(c Budget) bool {
	return b.Name == c.Name && b.Workers == c.Workers && b.MaxUnavailable == c.MaxUnavailable && slices.Equal(b.Workloads, c.Workloads)
}

// budgets are what there is to be. Leaders stand for their groups, so as many of them may go as the user lets groups be
// away. A worker takes its group with it as well, and nothing counts that: so no two at once, and none while a group is
// not whole.
func budgets(o Observation) []Budget {
	if !o.Policy.GroupBudget || o.Record == nil || o.Record.Release == nil {
		return nil
	}
	switch o.Record.Release.Phase {
	case record.Nothing:
		return nil
	case record.Promoted, record.CleaningUp:
		if len(o.Added) == 0 {
			return nil
		}
	case record.HandingOver:
		if o.stableDrained() {
			return nil
		}
	default:
	}
	workloads := []string{o.Stable.Name}
	for _, w := range o.Added {
		workloads = append(workloads, w.Name)
	}
	slices.Sort(workloads)
	all := []Budget{{
		Name: record.BudgetName(o.Stable.Name, false), Workloads: workloads,
		MaxUnavailable: Tolerated(o.Record.Saved, o.Stable.Replicas),
	}}
	if o.Stable.Size > 1 {
		all = append(all, Budget{Name: record.BudgetName(o.Stable.Name, true), Workers: true, Workloads: workloads, MaxUnavailable: 1})
	}
	return all
}
