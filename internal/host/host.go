// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package host drives releases over the contract in proto/lockstep/v1alpha1, as any host would: it reaches the driver only
// through gRPC, and imports no Kubernetes.
//
// A [Host] makes one request, and decides the next one from the response. The decision is a pure function of the last
// BatchContext and of a little state of this run (machine.go, decide.go); everything durable is in the driver. So a host that was
// killed, or interrupted with Ctrl-C, continues when it is started again with the same release id and policy.
//
// Only responses to the host's own requests lead to decisions. The watch is for display, and a hint to request again: it may
// lag behind a response, and never overrides one.
package host

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/lockstep-rollouts/lockstep/internal/gate"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Driver is the part of the contract that a host needs, as plugin.Client has it.
type Driver interface {
	plugin.ContextWatcher

	Info() *pb.GetDriverInfoResponse
	CalculateBatchContext(
		context.Context, *pb.CalculateBatchContextRequest, ...grpc.CallOption) (*pb.CalculateBatchContextResponse, error)
	Initialize(context.Context, *pb.InitializeRequest, ...grpc.CallOption) (*pb.InitializeResponse, error)
	UpgradeBatch(context.Context, *pb.UpgradeBatchRequest, ...grpc.CallOption) (*pb.UpgradeBatchResponse, error)
	Finalize(context.Context, *pb.FinalizeRequest, ...grpc.CallOption) (*pb.FinalizeResponse, error)
	SetWeight(context.Context, *pb.SetWeightRequest, ...grpc.CallOption) (*pb.SetWeightResponse, error)
	SetHeaderRoute(context.Context, *pb.SetHeaderRouteRequest, ...grpc.CallOption) (*pb.SetHeaderRouteResponse, error)
}

var _ Driver = (*plugin.Client)(nil)

// Host drives releases. It may be used by several goroutines.
type Host struct {
	// Driver is required.
	Driver Driver
	// Observe is called for each event, from one goroutine per run. May be nil.
	Observe func(Event)
	// Metrics measures the gates of releases. Required for a release with gates.
	Metrics Metrics
	// Timing may be left zero.
	Timing Timing
	// Force: a rollback that this host requests is not held up by groups that will not recover.
	Force bool
}

// Release drives a release to its end, from any state: it may be called again with the same Release after an interruption,
// a crash or a failure. When ctx ends, it returns OutcomeInterrupted and no error. An error means that the driver refused, or
// did not answer for Timing.Patience.
func (h *Host) Release(ctx context.Context, release Release) (Result, error) {
	if err := checkTraffic(release, h.Driver.Info()); err != nil {
		return Result{}, err
	}
	r := h.newRun(release)
	return r.finish(ctx, func(ctx context.Context) (step, error) {
		if err := h.checkGates(ctx, release); err != nil {
			return step{}, err
		}
		return r.begin(ctx)
	})
}

// Finish ends the release of a context that Look returned, without further batches. It promotes no other revision than that of
// the context. The message says why, and may be empty. The guarantees are those of Release.
func (h *Host) Finish(ctx context.Context, seen *pb.BatchContext, intent pb.FinalizeIntent, message string) (Result, error) {
	r := h.newRun(Release{Workload: seen.GetWorkload(), ID: seen.GetReleaseId()})
	r.machine.endOnly, r.machine.revision, r.machine.endMessage = true, seen.GetUpdateRevision(), message
	r.last = seen
	return r.finish(ctx, func(ctx context.Context) (step, error) {
		// The first response may take Timing.Wait, and the progress is to be visible meanwhile.
		r.watching.Do(func() { r.watch(ctx) })
		return r.machine.requestEnd(intent), nil
	})
}

// Look returns the state of the workload, without waiting for a settled state.
func (h *Host) Look(ctx context.Context, ref *pb.WorkloadRef) (c *pb.BatchContext, err error) {
	err = h.Retry(ctx, func(ctx context.Context) (err error) {
		c, err = h.read(ctx, ref, "")
		return err
	})
	return c, err
}

// read returns the state of the workload. A release that is named must be its own.
func (h *Host) read(ctx context.Context, ref *pb.WorkloadRef, release string) (*pb.BatchContext, error) {
	response, err := h.Driver.CalculateBatchContext(ctx, &pb.CalculateBatchContextRequest{
		Workload: ref, ReleaseId: release, IncludeGroups: true,
	})
	return response.GetContext(), err
}

// Retry makes a call until it succeeds or is refused, ctx ends, or retryable errors have lasted for Timing.Patience.
func (h *Host) Retry(ctx context.Context, call func(context.Context) error) error {
	return h.retry(ctx, call, func(_ error, delay time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(delay):
		}
	})
}

// retry is Retry with a function that waits after an error.
func (h *Host) retry(ctx context.Context, call func(context.Context) error, wait func(error, time.Duration)) error {
	timing := h.Timing.withDefaults()
	began, delay := time.Now(), timing.Backoff
	for {
		err := call(ctx)
		if err == nil || ctx.Err() != nil || !converge.Retryable(err) {
			return err
		}
		if time.Since(began) > timing.Patience {
			return gaveUp(timing.Patience, err)
		}
		wait(err, delay)
		delay = min(2*delay, maxBackoff)
	}
}

func (h *Host) newRun(release Release) *run {
	return &run{
		host:   h,
		timing: h.Timing.withDefaults(),
		machine: machine{
			Release:  release,
			batches:  release.Policy.GetBatches(),
			routed:   release.Policy.GetTraffic() != nil,
			patience: h.Timing.withDefaults().Patience,
		},
		feed: make(chan *pb.BatchContext),
	}
}

// gaveUp adds to an error how long the host has retried.
func gaveUp(patience time.Duration, err error) error {
	return fmt.Errorf("gave up after %s: %w", patience, err)
}

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
	// Context is the newest known state. Nil means none yet. Receivers must not change it.
	Context *pb.BatchContext
	// Gates is the state of each gate for the batch, with EventGates and EventGateFailed only.
	Gates []gate.Result
	// Outcome is set with EventFinished only.
	Outcome Outcome
}

// OwnerPrefix begins the owner of the command line's releases.
const OwnerPrefix = "lockstep-cli/"

// IsOther reports whether an owner is another host than the command line.
func IsOther(owner string) bool { return owner != "" && !strings.HasPrefix(owner, OwnerPrefix) }

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
	// OutcomeRecorded: the promotion or rollback is recorded, and was not followed to its end.
	OutcomeRecorded Outcome = "recorded"
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
	// Context is the newest known state. Nil means that the driver never answered.
	Context *pb.BatchContext
	// Failure says which gate failed, and why. Empty means that none did.
	Failure string
}

// OnFailure is what the host does when the release is FAILED.
type OnFailure string

// What a host can do about a failure.
const (
	// OnFailurePause stops without a change of the release.
	OnFailurePause OnFailure = "pause"
	// OnFailureRollback rolls the release back.
	OnFailureRollback OnFailure = "rollback"
	// OnFailureWait continues when the release recovers.
	OnFailureWait OnFailure = "wait"
)

// Release is what to release and how. Its caller has checked that it is complete and free of contradictions; the driver checks the policy.
type Release struct {
	// Workload is required.
	Workload *pb.WorkloadRef
	// ID is the release id. Empty means the id of this owner's release in flight, or else one from NewID.
	ID string
	// NewID returns a new release id. Required when ID is empty.
	NewID func() string
	// Owner is shown to users, for example "lockstep-cli/jo@laptop".
	Owner string
	// Policy is required, has a batch, and must be the same on every run of one release. If it has traffic, a batch counts as ready
	// only when the routes follow its weight.
	Policy *pb.ReleasePolicy
	// Weights are the shares of requests that the update revision is to have once each batch is ready, in percent: one
	// per batch, each 0 to 100. A batch without groups gets none. Only with a policy that has traffic. Empty means each
	// batch's share of the workload's groups, rounded up.
	Weights []int32
	// HeaderRoutes are in force from the first ready batch until the end of the release. Only with a policy that has traffic.
	HeaderRoutes []HeaderRoute
	// Pause is how long this run must observe a batch as ready before it requests the next one, or the promotion, unless the batch has all
	// groups and the style is not blue-green. The pause starts again when the batch becomes unready.
	Pause time.Duration
	// NoPromote stops when the last batch is ready.
	NoPromote bool
	// OnFailure is what to do when the release is FAILED. Empty means OnFailurePause.
	OnFailure OnFailure
	// Gates must pass after each batch, before the next one or the promotion. A batch whose groups get no requests is not measured.
	Gates []gate.Gate
	// OnGateFailure is OnFailurePause or OnFailureRollback. Empty means OnFailureRollback, since the canary of a failed gate serves requests.
	OnGateFailure OnFailure
}

// Timing is how often and for how long the host makes requests. The zero value of a field means its default.
type Timing struct {
	// Wait is the long poll of each request. Default 30 s.
	Wait time.Duration
	// Interval is the least time between two equal requests, for drivers that do not wait. Default 1 s.
	Interval time.Duration
	// Backoff is the first delay after a retryable error; it doubles up to 5 s. Default 200 ms.
	Backoff time.Duration
	// Patience is for how long retryable errors in a row are retried. Default 5 min.
	Patience time.Duration
}

// maxBackoff bounds how late a host notices the end of an outage.
const maxBackoff = 5 * time.Second

// withDefaults returns t with each zero field set.
func (t Timing) withDefaults() Timing {
	return Timing{
		Wait: cmp.Or(t.Wait, 30*time.Second), Interval: cmp.Or(t.Interval, time.Second),
		Backoff: cmp.Or(t.Backoff, 200*time.Millisecond), Patience: cmp.Or(t.Patience, 5*time.Minute),
	}
}
