// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// The checks below reject what the contract never allows. Unknown enum values pass: a driver may be newer than its host.

var errNoContext = errors.New("context is missing")

// check rejects a response that the contract does not allow.
func check(response any) error {
	switch r := response.(type) {
	case *pb.GetDriverInfoResponse:
		return checkInfo(r)
	case *pb.WatchWorkloadsResponse:
		return checkWorkloads(r)
	case *pb.PlanResponse:
		return checkPlan(r)
	case *pb.PreflightResponse:
		return checkFindings(r.GetFindings())
	case *pb.ListRevisionsResponse:
		return checkRevisions(r)
	case *pb.FinalizeResponse: // a host would stop calling before the release has ended
		_, known := pb.State_name[int32(r.GetContext().GetState())]
		if state := r.GetContext().GetState(); r.GetDone() && known && !Settled(state) {
			return fmt.Errorf("done while the state is %v", state)
		}
	case *pb.UndoResponse:
		if r.GetRevision() == "" {
			return errors.New("revision is empty")
		}
	case *pb.VerifyWeightResponse:
		if err := checkPercentage("weight", r.GetWeight()); err != nil {
			return err
		}
	}
	if r, ok := response.(interface{ GetAction() pb.Action }); ok && r.GetAction() == pb.Action_ACTION_UNSPECIFIED {
		return errors.New("action is unspecified")
	}
	if r, ok := response.(interface{ GetContext() *pb.BatchContext }); ok {
		return checkContext(r.GetContext())
	}
	if r, ok := response.(interface {
		GetVerified() bool
		GetReason() string
	}); ok && !r.GetVerified() && r.GetReason() == "" {
		return errors.New("not verified, and reason is empty")
	}
	return nil
}

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
	err := nonNegative(c)
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
	err := nonNegative(g)
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

// nonNegative rejects negative numbers in the fields of a message itself.
func nonNegative(m proto.Message) (err error) {
	m.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		if field.Kind() == protoreflect.Int32Kind && !field.IsList() && value.Int() < 0 {
			err = fmt.Errorf("%s is negative: %d", field.Name(), value.Int())
		}
		return err == nil
	})
	return err
}

func checkPercentage(name string, value int32) error {
	if value < 0 || value > 100 {
		return fmt.Errorf("%s is %d, want 0 to 100", name, value)
	}
	return nil
}

func checkPlan(r *pb.PlanResponse) error {
	for i, step := range r.GetSteps() {
		if step.GetName() == "" {
			return fmt.Errorf("steps[%d].name is empty", i)
		}
		if err := nonNegative(step); err != nil {
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
