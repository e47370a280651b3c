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
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Driver is the part of the contract that a host needs, as plugin.Client has it.
type Driver interface {
	Router
	plugin.ContextWatcher

	Initialize(context.Context, *pb.InitializeRequest, ...grpc.CallOption) (*pb.InitializeResponse, error)
	UpgradeBatch(context.Context, *pb.UpgradeBatchRequest, ...grpc.CallOption) (*pb.UpgradeBatchResponse, error)
	Finalize(context.Context, *pb.FinalizeRequest, ...grpc.CallOption) (*pb.FinalizeResponse, error)
}

// Router is the part of a driver that splits requests, and its info.
type Router interface {
	Info() *pb.GetDriverInfoResponse
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
	if release.Workload == nil || len(release.Policy.GetBatches()) == 0 {
		return Result{}, errors.New("a release needs a workload and a policy with at least one batch")
	}
	if err := checkWeights(release, h.Driver.Info()); err != nil {
		return Result{}, err
	}
	if err := checkHeaderRoutes(release, h.Driver.Info()); err != nil {
		return Result{}, err
	}
	if err := h.checkGates(ctx, release); err != nil {
		return Result{}, err
	}
	r := h.newRun(release)
	return r.finish(ctx, r.begin)
}

// Finish ends the release of a context that Look returned, without further batches. It promotes no other revision than that of
// the context. The message says why, and may be empty. The guarantees are those of Release.
func (h *Host) Finish(ctx context.Context, seen *pb.BatchContext, intent pb.FinalizeIntent, message string) (Result, error) {
	if seen.GetWorkload() == nil || seen.GetReleaseId() == "" {
		return Result{}, errors.New("the end of a release needs a context with its workload and its id")
	}
	r := h.newRun(Release{Workload: seen.GetWorkload(), ID: seen.GetReleaseId()})
	r.machine.endOnly, r.machine.revision, r.machine.endMessage = true, seen.GetUpdateRevision(), message
	return r.finish(ctx, func(ctx context.Context) (step, error) {
		// The first response may take Timing.Wait, and the progress is to be visible meanwhile.
		r.watching.Do(func() { r.watch(ctx) })
		return r.machine.end(intent), nil
	})
}

// Look returns the state of the workload, without waiting for a settled state.
func (h *Host) Look(ctx context.Context, ref *pb.WorkloadRef) (*pb.BatchContext, error) {
	var c *pb.BatchContext
	err := h.Retry(ctx, func(ctx context.Context) error {
		response, err := h.Driver.CalculateBatchContext(ctx, &pb.CalculateBatchContextRequest{
			Workload: ref, IncludeGroups: true,
		})
		c = response.GetContext()
		return err
	})
	return c, err
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
		host:    h,
		timing:  h.Timing.withDefaults(),
		release: release,
		machine: machine{
			batches:      release.Policy.GetBatches(),
			routed:       release.Policy.GetTraffic() != nil,
			weights:      release.Weights,
			headerRoutes: release.HeaderRoutes,
			pause:        release.Pause,
			noPromote:    release.NoPromote,
			onFailure:    release.OnFailure,
			gates:        release.Gates,
			pauseOnGate:  release.OnGateFailure == OnFailurePause,
			patience:     h.Timing.withDefaults().Patience,
		},
		feed: make(chan *pb.BatchContext),
	}
}

// gaveUp adds to an error how long the host has retried.
func gaveUp(patience time.Duration, err error) error {
	return fmt.Errorf("gave up after %s: %w", patience, err)
}
