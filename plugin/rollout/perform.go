// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

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

// Target is a workload, and the Rollout that releases it.
type Target struct {
	Driver Driver
	Ref    *pb.WorkloadRef
	Facts  Facts
	Config *Config
}

// NewTarget returns the workload that the configuration names.
func NewTarget(driver Driver, f Facts, config *Config) Target {
	return Target{
		Driver: driver, Facts: f, Config: config,
		Ref: &pb.WorkloadRef{Namespace: f.Namespace, Name: config.Workload},
	}
}

// Look returns the state of the workload, from the driver's caches.
func (t Target) Look(ctx context.Context) (*pb.BatchContext, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	response, err := t.Driver.CalculateBatchContext(ctx, &pb.CalculateBatchContextRequest{Workload: t.Ref})
	return response.GetContext(), err
}

// Perform makes the call of a move. It returns the state of the workload, nil if the call's response has none.
func (t Target) Perform(ctx context.Context, m Move, step Step) (*pb.BatchContext, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	switch m.Action {
	case ActInitialize:
		return t.initialize(ctx, m.Release, t.Config.Policy)
	case ActRegister:
		return t.initialize(ctx, m.Release, registration())
	case ActUpgrade:
		return t.upgrade(ctx, m, step.Upgrade)
	case ActPromote:
		return t.finalize(ctx, m, pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE)
	case ActRollback:
		return t.finalize(ctx, m, pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)
	case ActAdopt:
		response, err := t.Driver.Adopt(ctx, &pb.AdoptRequest{Workload: t.Ref})
		return response.GetContext(), err
	case ActUndo:
		_, err := t.Driver.Undo(ctx, &pb.UndoRequest{Workload: t.Ref, Revision: m.Revision, TemplateRevision: m.Template})
		return nil, err
	case ActHeaders, ActMirror, ActWeight:
		return nil, t.route(ctx, m, step)
	case ActWait, ActSucceed, ActFail:
	}
	return nil, nil //nolint:nilnil // No call, no response.
}

func (t Target) initialize(ctx context.Context, id string, policy *pb.ReleasePolicy) (*pb.BatchContext, error) {
	response, err := t.Driver.Initialize(ctx, &pb.InitializeRequest{
		Workload: t.Ref, ReleaseId: id, Policy: policy, Owner: t.Facts.Owner,
	})
	return response.GetContext(), err
}

// upgrade sets the batch if the policy has one with this target, so that users see its number.
func (t Target) upgrade(ctx context.Context, m Move, groups string) (*pb.BatchContext, error) {
	request := &pb.UpgradeBatchRequest{
		Workload: t.Ref, ReleaseId: m.Release, UpdateRevision: m.Revision, Target: &pb.UpgradeBatchRequest_Groups{Groups: groups},
	}
	if i := slices.Index(t.Config.Policy.GetBatches(), groups); i >= 0 {
		request.Target = &pb.UpgradeBatchRequest_Batch{Batch: int32(i)} //nolint:gosec // A handful of batches.
	}
	response, err := t.Driver.UpgradeBatch(ctx, request)
	return response.GetContext(), err
}

func (t Target) finalize(ctx context.Context, m Move, intent pb.FinalizeIntent) (*pb.BatchContext, error) {
	response, err := t.Driver.Finalize(ctx, &pb.FinalizeRequest{
		Workload: t.Ref, ReleaseId: m.Release, Intent: intent, UpdateRevision: m.Revision, Message: m.Why,
	})
	return response.GetContext(), err
}

func (t Target) route(ctx context.Context, m Move, step Step) error {
	var err error
	switch m.Action { //nolint:exhaustive // The other actions do not route.
	case ActHeaders:
		_, err = t.Driver.SetHeaderRoute(ctx, &pb.SetHeaderRouteRequest{
			Workload: t.Ref, ReleaseId: m.Release, UpdateRevision: m.Revision, Name: headerRoute, Matches: *step.Headers,
		})
	case ActMirror:
		_, err = t.Driver.SetMirror(ctx, &pb.SetMirrorRequest{
			Workload: t.Ref, ReleaseId: m.Release, UpdateRevision: m.Revision, Percentage: *step.Mirror,
		})
	case ActWeight:
		_, err = t.Driver.SetWeight(ctx, &pb.SetWeightRequest{
			Workload: t.Ref, ReleaseId: m.Release, UpdateRevision: m.Revision, Weight: *step.Weight,
		})
	}
	return err
}

// Retryable reports whether the same call may succeed later without intervention. Each call has a deadline, so a driver that
// hangs counts as unavailable.
func Retryable(err error) bool {
	return plugin.Retryable(err) || status.Code(err) == codes.DeadlineExceeded
}

// Outdated reports whether the release is no longer what the call assumed, so that the next action is decided anew.
func Outdated(err error) bool {
	switch plugin.Reason(err) { // All others need a user, or are retryable.
	case pb.ErrorReason_ERROR_REASON_REVISION_CHANGED, pb.ErrorReason_ERROR_REASON_CONFLICT,
		pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED, pb.ErrorReason_ERROR_REASON_RELEASE_NOT_FOUND:
		return true
	default:
		return false
	}
}
