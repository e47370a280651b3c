// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/lockstep-rollouts/lockstep/internal/tracing"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Trace returns the trace of a workload's release.
func Trace(s *observe.Snapshot, r *record.Release) tracing.Release {
	return tracing.Release{Namespace: s.Key.Namespace, Workload: s.Key.Name, ID: r.ID, Started: r.StartedAt}
}

// traceWrite records a write as a span. Writes without a release, such as that of the hold, belong to no trace.
func traceWrite(s *observe.Snapshot, action plan.Action, began time.Time, err error) {
	rec := s.Record
	if set, ok := action.(plan.SetStable); ok {
		rec = &set.Record
	}
	if tracing.On() && rec != nil && rec.Release != nil {
		Trace(s, rec.Release).Record("write "+actionName(action), began, err, attribute.String("lockstep.write", action.String()))
	}
}

// traceState records a span for what a change of state ended: a batch, a promotion, a rollback, and with these the release.
func traceState(s *observe.Snapshot, decision plan.Decision) {
	if !tracing.On() {
		return
	}
	r := s.Record.Release
	trace, reason := Trace(s, r), attribute.String("lockstep.reason", decision.Reason)
	switch t := s.Target(); decision.State { //nolint:exhaustive // Other states end nothing.
	case pb.State_STATE_READY, pb.State_STATE_FAILED:
		if t == nil || r.Phase != record.Progressing {
			return
		}
		var err error
		if decision.State == pb.State_STATE_FAILED {
			err = errors.New(decision.Message)
		}
		attributes := []attribute.KeyValue{reason, attribute.String("lockstep.target", t.Groups)}
		if t.Batch != nil {
			attributes = append(attributes, attribute.Int("lockstep.batch", *t.Batch+1))
		}
		trace.Record("batch", t.At, err, attributes...)
	case pb.State_STATE_COMPLETED:
		trace.Record("promotion", r.PhaseAt, nil, reason)
		trace.End(stateName(decision.State), decision.Reason)
	case pb.State_STATE_ROLLED_BACK:
		trace.Record("rollback", r.PhaseAt, nil, reason)
		trace.End(stateName(decision.State), decision.Reason)
	}
}
