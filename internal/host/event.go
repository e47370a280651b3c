// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"time"

	"github.com/lockstep-rollouts/lockstep/internal/gate"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// EventKind names what happened. The values are part of the command line's JSON and YAML output.
type EventKind string

// What happens during a release.
const (
	// EventStarted: Initialize began a new release.
	EventStarted EventKind = "started"
	// EventResumed: Initialize found the release as an earlier run left it.
	EventResumed EventKind = "resumed"
	// EventProgress: the state changed; the message is the driver's.
	EventProgress EventKind = "progress"
	// EventBatchStarted: a batch is requested, for the first time in this run.
	EventBatchStarted EventKind = "batch-started"
	// EventHeaders: the header routes are requested.
	EventHeaders EventKind = "headers"
	// EventWeight: a weight is requested.
	EventWeight EventKind = "weight"
	// EventBatchReady: the batch is complete, and has its weight if the release routes requests.
	EventBatchReady EventKind = "batch-ready"
	// EventPause: the host waits before the next batch.
	EventPause EventKind = "pause"
	// EventGates: the gates were measured; Gates has their state.
	EventGates EventKind = "gates"
	// EventGateFailed: a gate failed, and the host does what was chosen for it.
	EventGateFailed EventKind = "gate-failed"
	// EventTemplateChanged: the workload's template changed, so the batches begin again.
	EventTemplateChanged EventKind = "template-changed"
	// EventPromoting: Finalize(PROMOTE) is requested.
	EventPromoting EventKind = "promoting"
	// EventRollingBack: Finalize(ROLLBACK) is requested, or the driver rolls back for another reason.
	EventRollingBack EventKind = "rolling-back"
	// EventFailed: the release is FAILED; the reason is in the context.
	EventFailed EventKind = "failed"
	// EventWarning: the driver accepted a request with a warning.
	EventWarning EventKind = "warning"
	// EventRetrying: a request failed and is retried.
	EventRetrying EventKind = "retrying"
	// EventFinished: the host stops; the outcome is set.
	EventFinished EventKind = "finished"
)

// Event is an event of a run.
type Event struct {
	// Kind is never empty.
	Kind EventKind
	// Time is the host's clock.
	Time time.Time
	// Message is a sentence without a full stop.
	Message string
	// Context is the newest known state. Nil: none yet. Receivers must not change it.
	Context *pb.BatchContext
	// Gates is the state of each gate for the batch, with EventGates and EventGateFailed only.
	Gates []gate.Result
	// Outcome is set with EventFinished only.
	Outcome Outcome
}

// Outcome is how a run of the host ended. The release itself may continue.
type Outcome string

// How a run ends.
const (
	// OutcomePromoted: the release is COMPLETED.
	OutcomePromoted Outcome = "promoted"
	// OutcomeRolledBack: the release is ROLLED_BACK.
	OutcomeRolledBack Outcome = "rolled-back"
	// OutcomeNothing: there was nothing to release.
	OutcomeNothing Outcome = "nothing-to-release"
	// OutcomeRestored: an older template is restored, and waits for a release.
	OutcomeRestored Outcome = "template-restored"
	// OutcomeLastBatch: the last batch is ready and the host was told not to promote.
	OutcomeLastBatch Outcome = "last-batch-ready"
	// OutcomeGateFailed: a gate failed, and the release was left at its batch.
	OutcomeGateFailed Outcome = "gate-failed"
	// OutcomeFailed: the release is FAILED, and was not changed.
	OutcomeFailed Outcome = "failed"
	// OutcomeSuperseded: the template changed before a promotion was durable, so it was not requested again.
	OutcomeSuperseded Outcome = "superseded"
	// OutcomeInterrupted: the host's context ended. The release was not changed.
	OutcomeInterrupted Outcome = "interrupted"
)

// Result is the end of a run.
type Result struct {
	// Outcome is never empty when the run returned no error.
	Outcome Outcome
	// ReleaseID is the release that the run was about.
	ReleaseID string
	// Context is the newest known state. Nil: the driver never answered.
	Context *pb.BatchContext
	// Failure says which gate failed, and why. Empty: none did.
	Failure string
}
