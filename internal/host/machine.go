// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"time"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// action is what the host does next.
type action int

const (
	// actInitialize asks for the release again, until it is prepared.
	actInitialize action = iota
	// actUpgrade asks for step.batch.
	actUpgrade
	// actHeaders asks for the header routes.
	actHeaders
	// actWeight asks for step.weight, which is the one of step.batch.
	actWeight
	// actPause waits until step.until, then looks again.
	actPause
	// actPromote asks for the end of the release, forwards.
	actPromote
	// actRollback asks for the end of the release, backwards.
	actRollback
	// actStop ends the run with step.outcome.
	actStop
)

// step is one decision, and what to tell people about it.
type step struct {
	action  action
	batch   int32
	weight  int32
	until   time.Time
	outcome Outcome
	notes   []note
}

// note is an event without its time and context.
type note struct {
	kind    EventKind
	message string
}

// machine decides. It has no client, clock or log; what it remembers between two contexts serves this run only.
type machine struct {
	// The settings.
	batches []string
	// routed is set when the policy routes requests, so that each batch has a weight: its own of weights, or else the
	// batch's share of groups.
	routed  bool
	weights []int32
	// headerRoutes are asked for once a batch is ready.
	headerRoutes []HeaderRoute

	pause     time.Duration
	noPromote bool
	onFailure OnFailure
	// endOnly is set for a run that asks for no batch.
	endOnly bool
	// insisted is true once a release that is being promoted was asked to roll back.
	insisted bool

	// intent is the end that was chosen, by this host or by another. UNSPECIFIED: none yet.
	intent pb.FinalizeIntent
	// asked is true once a request for the current aim was answered, so that a context speaks of that aim.
	asked bool
	// cursor is the batch to be at.
	cursor int32
	// revision is the update revision that cursor counts for.
	revision string
	// readySince is when the batch at cursor was first seen ready, without being unready since. Zero: it is not.
	readySince time.Time
	// begun and told count the batches whose start and readiness people know of, for this revision. sent is the weight
	// that people know was asked for, for the batch at cursor. Nil: none.
	begun, told int32
	sent        *int32
	// directed is true once the header routes were asked for, for this revision.
	directed bool
	// superseded is true when what was to be promoted is no longer what the template says.
	superseded bool
	// failing is true while people know that the release is FAILED.
	failing bool
}

// next decides what to do about c, which came with the last answer. It appends what people should know to the notes.
func (m *machine) next(c *pb.BatchContext, now time.Time) step {
	notes := m.follow(c)
	s := m.decide(c, now)
	s.notes = append(notes, s.notes...)
	return s
}

// follow moves the cursor to where the release is: to batch 0 for a new template, else never backwards.
func (m *machine) follow(c *pb.BatchContext) []note {
	was, revision := m.revision, c.GetUpdateRevision()
	if revision != "" {
		m.revision = revision
	}
	if was != "" && was != m.revision {
		return m.restart(was)
	}
	if c.CurrentBatch != nil && len(m.batches) > 0 {
		m.moveTo(min(max(m.cursor, c.GetCurrentBatch()), m.lastBatch()))
	}
	return nil
}

// restart forgets what was reached with the old template. Its promotion is forgotten too: nobody has seen the new one
// serve yet. A run that was asked for nothing but the end keeps its intent.
func (m *machine) restart(was string) []note {
	text := fmt.Sprintf("the template changed from revision %s to %s during the release", was, m.revision)
	if m.endOnly {
		m.superseded = m.intent == pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE
		return []note{{EventTemplateChanged, text}}
	}
	m.cursor, m.begun, m.told, m.sent, m.asked, m.readySince = 0, 0, 0, nil, false, time.Time{}
	m.directed = false
	m.intent = pb.FinalizeIntent_FINALIZE_INTENT_UNSPECIFIED
	return []note{{EventTemplateChanged, text + ": starting again at batch 1"}}
}

// moveTo sets the cursor. A batch's weight is news even if an earlier one had the same.
func (m *machine) moveTo(batch int32) {
	if batch != m.cursor {
		m.cursor, m.sent = batch, nil
	}
}

func (m *machine) lastBatch() int32 {
	return int32(len(m.batches)) - 1 //nolint:gosec // A request with 2^31 batches is larger than gRPC carries.
}

// batchName is for people, who count from 1.
func (m *machine) batchName(batch int32) string {
	return fmt.Sprintf("batch %d/%d (%s)", batch+1, len(m.batches), m.batches[batch])
}
