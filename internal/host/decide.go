// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"time"

	"github.com/lockstep-rollouts/lockstep/internal/gate"
	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// decide maps every state to a step.
func (m *machine) decide(c *pb.BatchContext, now time.Time) step {
	// The pause and the gates are of a batch that stays ready.
	if c.GetState() != pb.State_STATE_READY {
		m.readySince = time.Time{}
	}
	m.failing = m.failing && c.GetState() == pb.State_STATE_FAILED
	switch c.GetState() {
	case pb.State_STATE_COMPLETED:
		return step{action: actStop, outcome: OutcomePromoted}
	case pb.State_STATE_ROLLED_BACK:
		return step{action: actStop, outcome: OutcomeRolledBack}
	case pb.State_STATE_NOTHING_TO_RELEASE:
		return step{action: actStop, outcome: OutcomeNothing}
	case pb.State_STATE_FAILED:
		return m.failed(c)
	case pb.State_STATE_PROMOTING:
		if m.intent == pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK && !m.rollbackTried {
			m.rollbackTried = true // it can be rolled back until the driver refuses
			return m.requestEnd(m.intent)
		}
		return m.requestEnd(pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE)
	case pb.State_STATE_ROLLING_BACK:
		return m.requestEnd(pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)
	default:
		return m.advance(c, now)
	}
}

// advance decides about a release that has neither failed nor is being ended.
func (m *machine) advance(c *pb.BatchContext, now time.Time) step {
	// A promotion that is not durable yet must not release a template that its user has not seen.
	if m.endOnly && m.intent == pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE && m.promotionHeld(c) {
		changed := Event{Kind: EventTemplateChanged, Message: changedText(m.revision, c.GetTemplateRevision())}
		return step{action: actStop, outcome: OutcomeSuperseded, notes: []Event{changed}}
	}
	if m.intent != pb.FinalizeIntent_FINALIZE_INTENT_UNSPECIFIED {
		return m.requestEnd(m.intent)
	}
	switch c.GetState() {
	case pb.State_STATE_READY:
		return m.ready(c, now)
	case pb.State_STATE_PREPARING, pb.State_STATE_UNMANAGED, pb.State_STATE_UNSPECIFIED:
		return step{action: actInitialize}
	default:
		return m.requestBatch()
	}
}

// requestBatch requests the batch at the cursor.
func (m *machine) requestBatch() step {
	s := step{action: actUpgrade, batch: m.cursor}
	if m.begun <= m.cursor {
		m.begun = m.cursor + 1
		s.notes = []Event{{Kind: EventBatchStarted, Message: "moving to " + m.batchName(m.cursor)}}
	}
	return s
}

// ready sets the batch's weight, measures the gates, waits for the pause, and then requests the next batch or the end.
func (m *machine) ready(c *pb.BatchContext, now time.Time) step {
	// READY may be that of the batch before, until the driver has answered the request for this one.
	behind := c.CurrentBatch != nil && c.GetCurrentBatch() < m.cursor
	if behind || !m.requested {
		return m.requestBatch()
	}
	if len(m.HeaderRoutes) > 0 && !m.headersSet {
		// The pause and the gates begin once these requests reach the batch.
		m.readySince = time.Time{}
		return m.setHeaders()
	}
	if !m.hasWeight(c) {
		m.readySince = time.Time{}
		return m.setWeight(c)
	}
	pauses := m.needsPause(c)
	notes := m.noteReady(pauses)
	if m.readySince.IsZero() {
		m.readySince, m.measured = now, gate.Begin(m.gatesFor(c), now, m.patience)
	}
	switch m.measured.Verdict() {
	case gate.Failed, gate.Unanswered:
		return m.gateFailed(notes)
	case gate.Measuring:
		return step{action: actMeasure, batch: m.cursor, until: m.measured.Due(), about: gateSubject(c), notes: notes}
	case gate.Passed:
	}
	// The pause counts from the time at which the batch became ready, so the measurements are part of it.
	if until := m.readySince.Add(m.Pause); pauses && now.Before(until) {
		return step{action: actPause, batch: m.cursor, until: until, notes: notes}
	}
	if m.cursor == m.lastBatch() {
		return m.endBatches(notes)
	}
	m.moveTo(m.cursor + 1)
	m.requested, m.readySince = false, time.Time{}
	s := m.requestBatch()
	s.notes = append(notes, s.notes...)
	return s
}

// needsPause reports whether a pause follows the batch: one that has all groups has nothing more to show before the promotion, except in
// blue-green, where it has just received all requests.
func (m *machine) needsPause(c *pb.BatchContext) bool {
	if m.cursor < m.lastBatch() {
		return m.Pause > 0
	}
	promotes, hasAll := !m.NoPromote, c.GetPlanned() >= c.GetReplicas() && c.GetStyle() != pb.Style_STYLE_BLUE_GREEN
	return m.Pause > 0 && promotes && !hasAll
}

// noteReady returns the notes about a ready batch, once per batch and revision.
func (m *machine) noteReady(pauses bool) []Event {
	if m.announced > m.cursor {
		return nil
	}
	m.announced = m.cursor + 1
	notes := []Event{{Kind: EventBatchReady, Message: m.batchName(m.cursor) + " is ready"}}
	if pauses {
		next := "the promotion"
		if m.cursor < m.lastBatch() {
			next = m.batchName(m.cursor + 1)
		}
		notes = append(notes, Event{Kind: EventPause, Message: fmt.Sprintf("pausing %s before %s", m.Pause, next)})
	}
	return notes
}

// endBatches decides what follows the last batch.
func (m *machine) endBatches(notes []Event) step {
	if m.NoPromote {
		return step{action: actStop, outcome: OutcomeLastBatch, notes: notes}
	}
	m.promotes = true
	s := m.requestEnd(pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE)
	s.notes = append(notes, s.notes...)
	return s
}

// failed decides about a failed release by the settings. If an end was chosen, it is requested once all the same: a failed release
// can be rolled back.
func (m *machine) failed(c *pb.BatchContext) step {
	s := m.reactToFailure(c)
	if s.action != actStop && !m.failing {
		m.failing = true
		s.notes = append([]Event{{Kind: EventFailed, Message: failureMessage(c)}}, s.notes...)
	}
	return s
}

func failureMessage(c *pb.BatchContext) string {
	return fmt.Sprintf("the release failed (%s): %s", c.GetReason(), c.GetMessage())
}

// reactToFailure decides what to do about a failure.
func (m *machine) reactToFailure(c *pb.BatchContext) step {
	stop := step{action: actStop, outcome: OutcomeFailed}
	if m.intent == pb.FinalizeIntent_FINALIZE_INTENT_UNSPECIFIED && plugin.Ending(c) {
		m.intent, m.requested = c.GetIntent(), true // by an earlier run or another host
	}
	switch ends := m.intent != pb.FinalizeIntent_FINALIZE_INTENT_UNSPECIFIED; {
	case m.OnFailure == OnFailureRollback && !m.rollbackTried && (m.promotes || !ends):
		m.endMessage, m.rollbackTried = failureMessage(c), m.promotes
		return m.requestEnd(pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)
	case ends && (m.requested || m.rollbackTried) && m.OnFailure != OnFailureWait:
		return stop // the end was requested, and the release failed all the same
	case ends:
		return m.requestEnd(m.intent)
	case m.OnFailure == OnFailureWait:
		return m.requestBatch()
	default:
		return stop
	}
}

// requestEnd requests the end of the release, and notes it the first time.
func (m *machine) requestEnd(intent pb.FinalizeIntent) step {
	s := step{action: actPromote}
	begins := Event{Kind: EventPromoting, Message: "promoting: the stable groups move to the update revision"}
	if intent == pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK {
		s.action = actRollback
		begins = Event{Kind: EventRollingBack, Message: "rolling back to the stable revision"}
	}
	if m.intent != intent {
		m.intent, m.requested = intent, false
		s.notes = []Event{begins}
	}
	return s
}
