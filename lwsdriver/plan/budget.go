// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// Budget is a PodDisruptionBudget that counts groups of the user's workload and of the added ones.
type Budget struct {
	Name string
	// Workers: it selects workers. Otherwise leaders, one for each group.
	Workers bool
	// Workloads are the selected workloads, sorted.
	Workloads []string
	// MaxUnavailable is how many of the pods may be disrupted at a time.
	MaxUnavailable int
}

// SetBudget creates or updates a budget.
type SetBudget struct{ Budget Budget }

// DeleteBudget deletes a budget.
type DeleteBudget struct{ Name string }

func (SetBudget) action()    {}
func (DeleteBudget) action() {}

func (a SetBudget) String() string {
	return fmt.Sprintf("set PodDisruptionBudget %s: maxUnavailable %d over %v", a.Budget.Name, a.Budget.MaxUnavailable, a.Budget.Workloads)
}
func (a DeleteBudget) String() string { return "delete PodDisruptionBudget " + a.Name }

// Reasons of decisions about budgets.
const (
	ReasonBudgetDeleting = "DisruptionBudgetDeleting"
	ReasonBudgetsUnread  = "DisruptionBudgetsNotSynced"
)

// Tolerated returns how many groups the user allows to be unavailable at once; at least one, since a budget of 0 would
// block every drain.
func Tolerated(saved rolling, replicas int) int {
	return max(scaled(saved.MaxUnavailable, replicas, false), 1)
}

// keepBudgets keeps the release's budgets in force while it lasts, and deletes them afterwards. Writes that move
// groups come first.
func keepBudgets(o Observation, d Decision) Decision {
	if d.Action != nil || o.Stable.Deleting || d.Reason == ReasonStyleNotSupported {
		return d // budgets are deleted with the workload, and another driver manages its own
	}
	want := budgets(o)
	ends := func(reason, message string) Decision {
		if len(want) == 0 && cleanUpState(d.State) != d.State {
			d.State, d.Reason, d.Message, d.Wait = cleanUpState(d.State), reason, message, WaitCleanup
			d.Remedy = "Check that the driver may list, watch and delete poddisruptionbudgets"
		}
		return d
	}
	if p := o.BudgetsUnreadable; p != nil {
		d.Message += fmt.Sprintf("; the PodDisruptionBudgets of %s can't be read: %s", o.Stable.Name, p.Message)
		return ends(ReasonBudgetsUnread, d.Message)
	}
	if o.BudgetsUnread {
		return ends(ReasonBudgetsUnread, "the caches do not show yet whether a PodDisruptionBudget is left")
	}
	for _, have := range o.Budgets {
		if !slices.ContainsFunc(want, func(w Budget) bool { return w.Name == have.Name }) {
			d.Action = DeleteBudget{Name: have.Name}
			return ends(ReasonBudgetDeleting, have.Name+" is being deleted")
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

// budgets returns the budgets that should exist. A leader stands for its group, so as many leaders as the user allows
// groups to be unavailable may be evicted. Evicting a worker also takes its group down, which no budget counts: so one
// worker at a time, and none while a group is not ready.
func budgets(o Observation) []Budget {
	if !o.Policy.GroupBudget || o.Record == nil || o.Record.Release == nil {
		return nil
	}
	switch o.Record.Release.Phase {
	case record.Nothing:
		return nil
	// The added groups still serve, or finish their requests.
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
	// A group of one pod has no workers to protect.
	if o.Stable.Size > 1 {
		all = append(all, Budget{Name: record.BudgetName(o.Stable.Name, true), Workers: true, Workloads: workloads, MaxUnavailable: 1})
	}
	return all
}
