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

// required has the fields of responses that are never empty, by message.
var required = map[protoreflect.Name][]protoreflect.Name{
	"GetDriverInfoResponse":         {"name", "version", "kinds", "styles", "capabilities"},
	"AdoptResponse":                 {"action", "context"},
	"DisownResponse":                {"action"},
	"InitializeResponse":            {"action", "context"},
	"UpgradeBatchResponse":          {"action", "context"},
	"CalculateBatchContextResponse": {"context"},
	"WatchBatchContextResponse":     {"context"},
	"FinalizeResponse":              {"action", "context"},
	"UndoResponse":                  {"action", "revision"},
	"SetWeightResponse":             {"action"},
	"SetHeaderRouteResponse":        {"action"},
	"SetMirrorResponse":             {"action"},
	"ResetResponse":                 {"action"},
	"BatchContext":                  {"workload", "state", "reason"},
	"WorkloadRef":                   {"namespace", "name"},
	"Group":                         {"role", "leader"},
	"PlanStep":                      {"name"},
	"Finding":                       {"rule", "severity", "object", "message"},
	"ObjectRef":                     {"kind", "name"},
	"Revision":                      {"name"},
}

// checkResponse rejects a response that the contract never allows. Unknown enum values pass: a driver may be newer than its host.
func checkResponse(response proto.Message) error {
	if err := checkFields(response.ProtoReflect()); err != nil {
		return err
	}
	switch r := response.(type) {
	case interface{ GetContext() *pb.BatchContext }: // several responses
		if err := checkContext(r.GetContext()); err != nil {
			return fmt.Errorf("context.%w", err)
		}
		_, known := pb.State_name[int32(r.GetContext().GetState())]
		if f, ok := r.(*pb.FinalizeResponse); ok && f.GetDone() && known && !Settled(r.GetContext().GetState()) {
			return fmt.Errorf("done while the state is %v", r.GetContext().GetState()) // a host would stop calling before the end
		}
	case interface {
		GetVerified() bool
		GetReason() string
	}:
		if !r.GetVerified() && r.GetReason() == "" {
			return errors.New("not verified, and reason is empty")
		}
	}
	if r, ok := response.(*pb.VerifyWeightResponse); ok {
		return checkPercentage("weight", r.GetWeight())
	}
	return nil
}

// checkFields rejects a message without a required field, and one with a negative number, also within its fields.
func checkFields(m protoreflect.Message) (err error) {
	fields := m.Descriptor().Fields()
	for _, name := range required[m.Descriptor().Name()] {
		if !m.Has(fields.ByName(name)) {
			return fmt.Errorf("%s is empty", name)
		}
	}
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsMap():
		case field.IsList() && field.Message() != nil:
			for i := range value.List().Len() {
				if err = checkBounds(fmt.Sprintf("%s[%d]", field.Name(), i), value.List().Get(i).Message()); err != nil {
					break
				}
			}
		case field.IsList():
		case field.Message() != nil:
			err = checkBounds(string(field.Name()), value.Message())
		case field.Kind() == protoreflect.Int32Kind && value.Int() < 0:
			err = fmt.Errorf("%s is negative: %d", field.Name(), value.Int())
		}
		return err == nil
	})
	return err
}

func checkBounds(field string, m protoreflect.Message) error {
	if m.Descriptor().ParentFile().Package() != pb.File_lockstep_v1alpha1_driver_proto.Package() {
		return nil // times and durations
	}
	if err := checkFields(m); err != nil {
		return fmt.Errorf("%s.%w", field, err)
	}
	return nil
}

// checkContext rejects counts that contradict each other.
func checkContext(c *pb.BatchContext) error {
	switch {
	case c.GetUpdatedReady() > c.GetUpdated():
		return fmt.Errorf("updated_ready %d exceeds updated %d", c.GetUpdatedReady(), c.GetUpdated())
	case c.GetUpdated()+c.GetStableReady() > c.GetTotal():
		return fmt.Errorf("updated %d and stable_ready %d exceed total %d", c.GetUpdated(), c.GetStableReady(), c.GetTotal())
	case c != nil && c.CurrentBatch != nil && c.GetCurrentBatch() >= c.GetBatches():
		return fmt.Errorf("current_batch %d is not one of %d batches", c.GetCurrentBatch(), c.GetBatches())
	}
	for i, g := range c.GetGroups() {
		if g.GetReadyPods() > g.GetPods() {
			return fmt.Errorf("groups[%d].ready_pods %d exceeds pods %d", i, g.GetReadyPods(), g.GetPods())
		}
	}
	return checkPercentage("traffic_weight", c.GetTrafficWeight())
}

func checkPercentage(name string, value int32) error {
	if value < 0 || value > 100 {
		return fmt.Errorf("%s is %d, want 0 to 100", name, value)
	}
	return nil
}
