// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"time"

	"github.com/lockstep-rollouts/lockstep/internal/gate"
	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// action is a kind of step.
type action int

const (
	// actInitialize calls Initialize, again until the release is prepared.
	actInitialize action = iota
	// actUpgrade requests step.batch.
	actUpgrade
	// actHeaders requests the header routes.
	actHeaders
	// actWeight requests step.weight, which is that of step.batch.
	actWeight
	// actPause waits until step.until, then requests step.batch again.
	actPause
	// actMeasure waits until step.until, then measures the gates that are due.
	actMeasure
	// actPromote requests the promotion.
	actPromote
	// actRollback requests the rollback.
	actRollback
	// actStop ends the run with step.outcome.
	actStop
)

// step is one decision, with its notes for the user: events without their time and context.
type step struct {
	action  action
	batch   int32
	weight  int32
	until   time.Time
	outcome Outcome
	about   gate.Subject // of actMeasure
	notes   []Event
}

// machine decides. It has no client, clock or log. Its state is for this run only.
type machine struct {
	Release // the settings

	// batches are those of its policy.
	batches []string
	// routed is set when the policy routes requests, so that each batch has a weight: its own of Weights, or else the
	// batch's share of groups.
	routed bool
	// patience is how long gates are measured at most without an answer.
	patience time.Duration
	// endOnly is set for a run that requests no batch.
	endOnly bool
	// promotes is true once this run has requested the promotion, for this revision.
	promotes bool
	// rollbackTried is true once the rollback of a release that is being promoted was requested.
	rollbackTried bool

	// intent is the end that this host or another one has chosen. UNSPECIFIED: none yet.
	intent pb.FinalizeIntent
	// requested is true once the driver has answered the request for the current batch or end, so that the context includes it.
	requested bool
	// cursor is the batch to reach.
	cursor int32
	// revision is the update revision to which cursor belongs.
	revision string
	// readySince is since when the batch at cursor was observed ready. Zero means that it is not ready.
	readySince time.Time
	// measured are the gates since readySince. gateFailure says which gate of this run failed, and why. Empty means that none did.
	measured    gate.Run
	gateFailure string
	// endMessage is why the end is requested. Empty means that all batches are ready, or a user asked for it.
	endMessage string
	// begun and announced count the batches whose start and readiness were noted, for this revision. notedWeight is the weight that
	// was noted for the batch at cursor. Nil means none.
	begun, announced int32
	notedWeight      *int32
	// headersSet is true once the header routes were requested, for this revision.
	headersSet bool
	// failing is true once it was noted that the release is FAILED.
	failing bool
}

// next decides the next step after the context of the last response.
func (m *machine) next(c *pb.BatchContext, now time.Time) step {
	notes := m.follow(c)
	s := m.decide(c, now)
	s.notes = append(notes, s.notes...)
	return s
}

// follow moves the cursor to the release's batch: to batch 0 for a new template, otherwise never backwards.
func (m *machine) follow(c *pb.BatchContext) []Event {
	switch was, revision := m.revision, c.GetUpdateRevision(); {
	case revision == "" || revision == was:
	case was == "":
		m.revision = revision
	case m.endOnly && m.intent == pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE:
		return nil // the promotion is of the revision that its user saw
	default:
		m.revision = revision
		return m.restart(was)
	}
	if c.CurrentBatch != nil && len(m.batches) > 0 {
		// An earlier run of this host may have requested a later batch.
		m.moveTo(min(max(m.cursor, c.GetCurrentBatch()), m.lastBatch()))
	}
	return nil
}

// restart starts over with the new template, also if the old one was being promoted: no batch of the new one has been verified. A run
// that only ends the release keeps its intent.
func (m *machine) restart(was string) []Event {
	text := changedText(was, m.revision)
	if m.endOnly {
		return []Event{{Kind: EventTemplateChanged, Message: text}}
	}
	m.cursor, m.begun, m.announced, m.notedWeight, m.requested, m.readySince = 0, 0, 0, nil, false, time.Time{}
	m.headersSet, m.promotes, m.gateFailure, m.endMessage = false, false, "", ""
	m.intent = pb.FinalizeIntent_FINALIZE_INTENT_UNSPECIFIED
	return []Event{{Kind: EventTemplateChanged, Message: text + ": starting again at batch 1"}}
}

func changedText(was, now string) string {
	return fmt.Sprintf("the template changed from revision %s to %s during the release", was, now)
}

// promotionHeld reports whether the promotion that a user requested is of another template than the workload's.
func (m *machine) promotionHeld(c *pb.BatchContext) bool {
	return converge.Next(converge.Goal{
		Kind: converge.Promote, Workload: c.GetWorkload(), Owner: c.GetOwner(), Release: c.GetReleaseId(), Revision: m.revision,
	}, c).Outcome == converge.Held
}

// moveTo sets the cursor. A batch's weight is noted even if an earlier batch had the same.
func (m *machine) moveTo(batch int32) {
	if batch != m.cursor {
		m.cursor, m.notedWeight = batch, nil
	}
}

func (m *machine) lastBatch() int32 {
	return int32(len(m.batches)) - 1 //nolint:gosec // A request with 2^31 batches is larger than gRPC carries.
}

// batchName counts from 1, for messages.
func (m *machine) batchName(batch int32) string {
	return fmt.Sprintf("batch %d/%d (%s)", batch+1, len(m.batches), m.batches[batch])
}
