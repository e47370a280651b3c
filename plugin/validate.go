// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// The checks below reject what the contract never allows. Unknown enum values pass: a driver may be newer than its host.

var errNoContext = errors.New("context is missing")

func checkInfo(r *pb.GetDriverInfoResponse) error {
	switch {
	case r.GetName() == "":
		return errors.New("name is empty")
	case r.GetVersion() == "":
		return errors.New("version is empty")
	case len(r.GetKinds()) == 0:
		return errors.New("kinds is empty")
	case len(r.GetStyles()) == 0:
		return errors.New("styles is empty")
	case len(r.GetCapabilities()) == 0:
		return errors.New("capabilities is empty")
	default:
		return nil
	}
}

func checkAction(action pb.Action) error {
	if action == pb.Action_ACTION_UNSPECIFIED {
		return errors.New("action is unspecified")
	}
	return nil
}

// checkContext checks a required BatchContext.
func checkContext(c *pb.BatchContext) error {
	if c == nil {
		return errNoContext
	}
	if c.GetWorkload().GetNamespace() == "" || c.GetWorkload().GetName() == "" {
		return errors.New("context.workload is incomplete")
	}
	if c.GetState() == pb.State_STATE_UNSPECIFIED {
		return errors.New("context.state is unspecified")
	}
	if c.GetReason() == "" {
		return errors.New("context.reason is empty")
	}
	if err := checkCounts(c); err != nil {
		return err
	}
	for i, group := range c.GetGroups() {
		if err := checkGroup(group); err != nil {
			return fmt.Errorf("context.groups[%d]: %w", i, err)
		}
	}
	return nil
}

// checkWorkloads checks a change. An unknown kind of change passes.
func checkWorkloads(r *pb.WatchWorkloadsResponse) error {
	switch change := r.GetChange().(type) {
	case *pb.WatchWorkloadsResponse_Context:
		return checkContext(change.Context)
	case *pb.WatchWorkloadsResponse_Removed:
		if change.Removed.GetNamespace() == "" || change.Removed.GetName() == "" {
			return errors.New("removed is incomplete")
		}
	}
	return nil
}

func checkCounts(c *pb.BatchContext) error {
	err := nonNegative(map[string]int32{
		"replicas": c.GetReplicas(), "size": c.GetSize(), "batches": c.GetBatches(),
		"current_batch": c.GetCurrentBatch(), "planned": c.GetPlanned(), "desired": c.GetDesired(),
		"updated": c.GetUpdated(), "updated_ready": c.GetUpdatedReady(), "stable_ready": c.GetStableReady(),
		"total": c.GetTotal(), "partition": c.GetPartition(), "failure_threshold": c.GetFailureThreshold(),
	})
	switch {
	case err != nil:
		return fmt.Errorf("context.%w", err)
	case c.GetUpdatedReady() > c.GetUpdated():
		return fmt.Errorf("context.updated_ready %d exceeds updated %d", c.GetUpdatedReady(), c.GetUpdated())
	case c.GetUpdated() > c.GetTotal():
		return fmt.Errorf("context.updated %d exceeds total %d", c.GetUpdated(), c.GetTotal())
	case c.GetUpdated()+c.GetStableReady() > c.GetTotal():
		return fmt.Errorf("context.updated %d and stable_ready %d exceed total %d",
			c.GetUpdated(), c.GetStableReady(), c.GetTotal())
	case c.GetPlanned() > c.GetReplicas():
		return fmt.Errorf("context.planned %d exceeds replicas %d", c.GetPlanned(), c.GetReplicas())
	case c.CurrentBatch != nil && c.GetCurrentBatch() >= c.GetBatches():
		return fmt.Errorf("context.current_batch %d is not one of %d batches", c.GetCurrentBatch(), c.GetBatches())
	default:
		return checkPercentage("context.traffic_weight", c.GetTrafficWeight())
	}
}

func checkGroup(g *pb.Group) error {
	if g == nil {
		return errors.New("is missing")
	}
	err := nonNegative(map[string]int32{"index": g.GetIndex(), "ready_pods": g.GetReadyPods(), "pods": g.GetPods()})
	switch {
	case err != nil:
		return err
	case g.GetRole() == pb.GroupRole_GROUP_ROLE_UNSPECIFIED:
		return errors.New("role is unspecified")
	case g.GetLeader() == "":
		return errors.New("leader is empty")
	case g.GetReadyPods() > g.GetPods():
		return fmt.Errorf("ready_pods %d exceeds pods %d", g.GetReadyPods(), g.GetPods())
	default:
		return nil
	}
}

func nonNegative(counts map[string]int32) error {
	for name, count := range counts {
		if count < 0 {
			return fmt.Errorf("%s is negative: %d", name, count)
		}
	}
	return nil
}

func checkPercentage(name string, value int32) error {
	if value < 0 || value > 100 {
		return fmt.Errorf("%s is %d, want 0 to 100", name, value)
	}
	return nil
}

// checkFinalize rejects a "done" that contradicts the state: a host would stop calling before the release has ended.
func checkFinalize(r *pb.FinalizeResponse) error {
	if err := errors.Join(checkAction(r.GetAction()), checkContext(r.GetContext())); err != nil {
		return err
	}
	if state := r.GetContext().GetState(); r.GetDone() && known(state) && !Settled(state) {
		return fmt.Errorf("done while the state is %v", state)
	}
	return nil
}

// known reports whether this version knows the state.
func known(state pb.State) bool {
	_, ok := pb.State_name[int32(state)]
	return ok
}

func checkPlan(r *pb.PlanResponse) error {
	for i, step := range r.GetSteps() {
		if step.GetName() == "" {
			return fmt.Errorf("steps[%d].name is empty", i)
		}
		err := nonNegative(map[string]int32{
			"stable_groups": step.GetStableGroups(), "canary_groups": step.GetCanaryGroups(),
			"extra_groups": step.GetExtraGroups(), "extra_pods": step.GetExtraPods(),
			"min_available_groups": step.GetMinAvailableGroups(), "max_groups": step.GetMaxGroups(),
		})
		if err != nil {
			return fmt.Errorf("steps[%d].%w", i, err)
		}
	}
	return checkFindings(r.GetFindings())
}

func checkFindings(findings []*pb.Finding) error {
	for i, f := range findings {
		switch {
		case f.GetRule() == "":
			return fmt.Errorf("findings[%d].rule is empty", i)
		case f.GetSeverity() == pb.Severity_SEVERITY_UNSPECIFIED:
			return fmt.Errorf("findings[%d].severity is unspecified", i)
		case f.GetObject().GetKind() == "" || f.GetObject().GetName() == "":
			return fmt.Errorf("findings[%d].object is incomplete", i)
		case f.GetMessage() == "":
			return fmt.Errorf("findings[%d].message is empty", i)
		}
	}
	return nil
}

func checkRevisions(r *pb.ListRevisionsResponse) error {
	for i, revision := range r.GetRevisions() {
		if revision.GetName() == "" {
			return fmt.Errorf("revisions[%d].name is empty", i)
		}
	}
	return nil
}

func checkUndo(r *pb.UndoResponse) error {
	if r.GetRevision() == "" {
		return errors.New("revision is empty")
	}
	return checkAction(r.GetAction())
}

func checkVerified(verified bool, reason string) error {
	if !verified && reason == "" {
		return errors.New("not verified, and reason is empty")
	}
	return nil
}
