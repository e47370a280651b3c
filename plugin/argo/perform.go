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

// callTimeout bounds one call of the driver; none of them waits for the cluster.
const callTimeout = 15 * time.Second

// headerRoute is the name of the header route that steps set.
const headerRoute = "argo-rollouts"

// target is one workload and who releases it.
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

// look asks the driver's caches where the workload stands.
func (t target) look(ctx context.Context) (*pb.BatchContext, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	response, err := t.driver.CalculateBatchContext(ctx, &pb.CalculateBatchContextRequest{Workload: t.ref})
	return response.GetContext(), err
}

// perform makes the call of a move. It returns the workload's context, nil where the call's answer has none.
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
	return nil, nil //nolint:nilnil // There was nothing to ask, so there is no answer.
}

func (t target) initialize(ctx context.Context, id string, policy *pb.ReleasePolicy) (*pb.BatchContext, error) {
	response, err := t.driver.Initialize(ctx, &pb.InitializeRequest{
		Workload: t.ref, ReleaseId: id, Policy: policy, Owner: t.facts.Owner(),
	})
	return response.GetContext(), err
}

// upgrade names the batch where the policy has it, so that people see which of how many it is.
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
	switch m.action { //nolint:exhaustive // The three that route.
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

// passing reports whether the same call may succeed later without anybody doing something. A call has a deadline of its
// own, so a driver that hangs counts as one that is away.
func passing(err error) bool {
	return plugin.Retryable(err) || status.Code(err) == codes.DeadlineExceeded
}

// overtaken reports whether the release is no longer what the call meant, so that a new look decides anew.
func overtaken(err error) bool {
	switch plugin.Reason(err) { // All others are for people, or pass.
	case pb.ErrorReason_ERROR_REASON_REVISION_CHANGED, pb.ErrorReason_ERROR_REASON_CONFLICT,
		pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED, pb.ErrorReason_ERROR_REASON_RELEASE_NOT_FOUND:
		return true
	default:
		return false
	}
}
