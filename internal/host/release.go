// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
	"time"

	"github.com/lockstep-rollouts/lockstep/internal/gate"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

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

// Release is what to release and how.
type Release struct {
	// Workload is required.
	Workload *pb.WorkloadRef
	// ID is the release id. Empty means the id of this owner's release in flight, or else one from NewID.
	ID string
	// NewID returns a new release id. Required when ID is empty.
	NewID func() string
	// Owner is shown to users, for example "lockstep-cli/jo@laptop".
	Owner string
	// Policy is required, and must be the same on every run of one release. If it has traffic, a batch counts as ready
	// only when the routes follow its weight.
	Policy *pb.ReleasePolicy
	// Weights are the shares of requests that the update revision is to have once each batch is ready, in percent: one
	// per batch, each 0 to 100. A batch without groups gets none. Only with a policy that has traffic. Empty means each
	// batch's share of the workload's groups, rounded up.
	Weights []int32
	// HeaderRoutes are in force from the first ready batch until the end of the release. Only with a policy that has traffic.
	HeaderRoutes []HeaderRoute
	// Pause is how long this run must observe a batch as ready before it requests the next one. The pause starts again when
	// the batch becomes unready. There is no pause after the last batch.
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

// ended reports whether the release has ended.
func ended(c *pb.BatchContext) bool {
	return c.GetState() == pb.State_STATE_COMPLETED || c.GetState() == pb.State_STATE_ROLLED_BACK
}
