// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// callTimeout bounds one call of the driver. No call waits for the cluster.
const callTimeout = 15 * time.Second

// headerRoute is the name of the header route that steps set.
const headerRoute = "argo-rollouts"

// target is a workload, and the Rollout that releases it.
type target struct {
	driver Driver
	ref    *pb.WorkloadRef
	facts  Facts
	config *Config
}

func newTarget(driver Driver, f Facts, config *Config) target {
	return target{
		driver: driver, facts: f, config: config,
		ref: &pb.WorkloadRef{Namespace: f.Namespace, Name: config.Workload},
	}
}

// look returns the state of the workload, from the driver's caches.
func (t target) look(ctx context.Context) (*pb.BatchContext, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	response, err := t.driver.CalculateBatchContext(ctx, &pb.CalculateBatchContextRequest{Workload: t.ref})
	return response.GetContext(), err
}

// perform makes the call of a move. It returns the state of the workload, nil if the call's response has none.
func (t target) perform(ctx context.Context, m move, step Step) (*pb.BatchContext, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	switch m.action {
	case actInitialize:
		return t.initialize(ctx, m.release, t.config.Policy)
	case actRegister:
		return t.initialize(ctx, m.release, registration())
	case actUpgrade:
		return t.upgrade(ctx, m, step.Upgrade)
	case actPromote:
		return t.finalize(ctx, m, pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE)
	case actRollback:
		return t.finalize(ctx, m, pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)
	case actAdopt:
		response, err := t.driver.Adopt(ctx, &pb.AdoptRequest{Workload: t.ref})
		return response.GetContext(), err
	case actUndo:
		_, err := t.driver.Undo(ctx, &pb.UndoRequest{Workload: t.ref, Revision: m.revision})
		return nil, err
	case actHeaders, actMirror, actWeight:
		return nil, t.route(ctx, m, step)
	case actWait, actSucceed, actFail, actAnnotate:
	}
	return nil, nil //nolint:nilnil // No call, no response.
}

func (t target) initialize(ctx context.Context, id string, policy *pb.ReleasePolicy) (*pb.BatchContext, error) {
	response, err := t.driver.Initialize(ctx, &pb.InitializeRequest{
		Workload: t.ref, ReleaseId: id, Policy: policy, Owner: t.facts.Owner(),
	})
	return response.GetContext(), err
}

// upgrade sets the batch if the policy has one with this target, so that users see its number.
func (t target) upgrade(ctx context.Context, m move, groups string) (*pb.BatchContext, error) {
	request := &pb.UpgradeBatchRequest{
		Workload: t.ref, ReleaseId: m.release, UpdateRevision: m.revision, Target: &pb.UpgradeBatchRequest_Groups{Groups: groups},
	}
	if i := slices.Index(t.config.Policy.GetBatches(), groups); i >= 0 {
		request.Target = &pb.UpgradeBatchRequest_Batch{Batch: int32(i)} //nolint:gosec // A handful of batches.
	}
	response, err := t.driver.UpgradeBatch(ctx, request)
	return response.GetContext(), err
}

func (t target) finalize(ctx context.Context, m move, intent pb.FinalizeIntent) (*pb.BatchContext, error) {
	response, err := t.driver.Finalize(ctx, &pb.FinalizeRequest{
		Workload: t.ref, ReleaseId: m.release, Intent: intent, UpdateRevision: m.revision,
	})
	return response.GetContext(), err
}

func (t target) route(ctx context.Context, m move, step Step) error {
	var err error
	switch m.action { //nolint:exhaustive // The other actions do not route.
	case actHeaders:
		_, err = t.driver.SetHeaderRoute(ctx, &pb.SetHeaderRouteRequest{
			Workload: t.ref, ReleaseId: m.release, UpdateRevision: m.revision, Name: headerRoute, Matches: *step.Headers,
		})
	case actMirror:
		_, err = t.driver.SetMirror(ctx, &pb.SetMirrorRequest{
			Workload: t.ref, ReleaseId: m.release, UpdateRevision: m.revision, Percentage: *step.Mirror,
		})
	case actWeight:
		_, err = t.driver.SetWeight(ctx, &pb.SetWeightRequest{
			Workload: t.ref, ReleaseId: m.release, UpdateRevision: m.revision, Weight: *step.Weight,
		})
	}
	return err
}

// retryable reports whether the same call may succeed later without intervention. Each call has a deadline, so a driver that
// hangs counts as unavailable.
func retryable(err error) bool {
	return plugin.Retryable(err) || status.Code(err) == codes.DeadlineExceeded
}

// outdated reports whether the release is no longer what the call assumed, so that the next action is decided anew.
func outdated(err error) bool {
	switch plugin.Reason(err) { // All others need a user, or are retryable.
	case pb.ErrorReason_ERROR_REASON_REVISION_CHANGED, pb.ErrorReason_ERROR_REASON_CONFLICT,
		pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED, pb.ErrorReason_ERROR_REASON_RELEASE_NOT_FOUND:
		return true
	default:
		return false
	}
}
