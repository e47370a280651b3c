// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/lockstep-rollouts/lockstep/internal/gate"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Metrics measures gates, as gate.Prometheus does. It may be used by several goroutines.
type Metrics interface {
	Measure(ctx context.Context, g gate.Gate, about gate.Subject) gate.Measurement
}

// checkGates returns an error if a gate can't be measured: before the release begins is a good time to learn that its query is wrong. That
// there is no data yet is no error.
func (h *Host) checkGates(ctx context.Context, release Release) error {
	about := gate.Example()
	about.Kind, about.Namespace, about.Name = release.Workload.GetKind(), release.Workload.GetNamespace(), release.Workload.GetName()
	for _, g := range release.Gates {
		if m := h.Metrics.Measure(ctx, g, about); m.Err != nil {
			return fmt.Errorf("gate %s can't be measured, so nothing was changed: %w", g.Name, m.Err)
		}
	}
	return nil
}

// gateSubject is what the gates of a release measure.
func gateSubject(c *pb.BatchContext) gate.Subject {
	return gate.Subject{
		Kind: c.GetWorkload().GetKind(), Namespace: c.GetWorkload().GetNamespace(), Name: c.GetWorkload().GetName(), CanaryWorkload: c.GetCanaryWorkload(),
		UpdateRevision: c.GetUpdateRevision(), StableRevision: c.GetStableRevision(),
	}
}

// gatesFor returns the gates of the batch at cursor: none if its groups get no requests, unless it is the last. Nothing is promoted
// unmeasured.
func (m *machine) gatesFor(c *pb.BatchContext) []gate.Gate {
	if m.cursor != m.lastBatch() && (c.GetPlanned() <= 0 || m.routed && m.weight(c) == 0) {
		return nil
	}
	return m.Gates
}

// gateFailed decides about a batch with a failed gate. That Prometheus does not answer says nothing about the groups: the release stays.
func (m *machine) gateFailed(notes []Event) step {
	s := step{action: actStop, outcome: OutcomeGateFailed}
	m.gateFailure = m.measured.Failure()
	if m.OnGateFailure != OnFailurePause && m.measured.Verdict() == gate.Failed {
		m.endMessage = m.gateFailure
		s = m.requestEnd(pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)
	}
	notes = append(notes, Event{Kind: EventGateFailed, Message: m.gateFailure, Gates: m.measured.Results()})
	s.notes = append(notes, s.notes...)
	return s
}

// record counts measurements of the batch at cursor.
func (m *machine) record(taken map[string]gate.Measurement, now time.Time) []Event {
	if len(taken) == 0 {
		return nil
	}
	m.measured.Record(taken, now)
	return []Event{{Kind: EventGates, Message: "gates: " + m.measured.String(), Gates: m.measured.Results()}}
}

// measure measures the gates that are due, all at the same time, and reads the state afterwards.
func (r *run) measure(ctx context.Context, s step) (answer, error) {
	due := r.machine.measured.DueAt(time.Now())
	taken := make(map[string]gate.Measurement, len(due))
	// Not part of what is retried: each measurement counts.
	_, err := r.callOnce(ctx, func(ctx context.Context) (answer, error) {
		var (
			mu  sync.Mutex
			all sync.WaitGroup
		)
		for _, g := range due {
			all.Go(func() {
				m := r.host.Metrics.Measure(ctx, g, s.about)
				mu.Lock()
				defer mu.Unlock()
				taken[g.Name] = m
			})
		}
		all.Wait()
		// A measurement that the end of ctx has cut off must not count.
		return answer{}, ctx.Err()
	})
	if err != nil {
		return answer{}, err
	}
	// The batch may have become unready during the measurements.
	a, err := r.retry(ctx, r.readContext)
	a.measured = taken
	return a, err
}
