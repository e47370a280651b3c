// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"context"
	"time"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/internal/sleep"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/rollout"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// enqueueOrphans enqueues workloads whose Rollout was deleted while no Controller ran.
func (c *Controller) enqueueOrphans(ctx context.Context) {
	for c.Adopted != nil && ctx.Err() == nil {
		workloads, err := c.Adopted(ctx)
		if apierrors.IsForbidden(err) {
			c.Logger.Info("not looking for workloads of Rollouts that were deleted in the past", "error", err)
			return
		}
		if err != nil {
			c.Logger.Warn("look for workloads of deleted Rollouts", "error", err)
			sleep.For(ctx, requeueBlocked)
			continue
		}
		for _, workload := range workloads {
			observed, err := c.look(ctx, workload)
			for ; rollout.Retryable(err) && ctx.Err() == nil; observed, err = c.look(ctx, workload) {
				sleep.For(ctx, requeueSoon) // the driver fills its caches, or is away
			}
			if _, _, ours := ownerOf(observed.GetOwner()); err == nil && ours {
				c.queue.Add(item{workload: true, NamespacedName: workload})
			}
		}
		return
	}
}

// reconcileWorkload disowns a workload whose Rollout is gone, once its release has been rolled back. A workload that another
// Rollout names stays under hold, and so does one whose template waits.
func (c *Controller) reconcileWorkload(ctx context.Context, key types.NamespacedName) (time.Duration, error) {
	others := c.rolloutsOf(key)
	observed, err := c.look(ctx, key)
	if plugin.Reason(err) == pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	owner := c.owner(observed, others)
	ref := &pb.WorkloadRef{Namespace: key.Namespace, Name: key.Name}
	switch {
	case observed.GetState() == pb.State_STATE_UNMANAGED, owner == ownerAlive:
	case plugin.InFlight(observed) && owner == ownerForeign:
		return requeueBlocked, nil
	case plugin.Ending(observed):
		return requeueSoon, nil
	case plugin.InFlight(observed):
		c.Logger.Info("rolling back: the Rollout of this release is gone", "workload", key.String(), "release", observed.GetReleaseId())
		_, err = c.Driver.Finalize(ctx, &pb.FinalizeRequest{
			Workload: ref, ReleaseId: observed.GetReleaseId(), Intent: pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK,
			Message: "the Rollout of this release is gone",
		})
		return requeueSoon, err
	case len(others) == 0 && plugin.Waits(observed):
		c.Logger.Info("the workload stays under hold: its Rollout is gone and its template waits, which LeaderWorkerSet would roll out at once. "+
			"Release it, or restore the template of the groups, which are then disowned", "workload", key.String(),
			"template", observed.GetTemplateRevision(), "groups", plugin.Serving(observed))
		return requeueBlocked, nil
	case len(others) == 0:
		c.Logger.Info("disowning the workload: its Rollout is gone", "workload", key.String())
		_, err = c.Driver.Disown(ctx, &pb.DisownRequest{Workload: ref})
		return 0, err
	}
	for _, i := range c.requests(ctx, key) {
		c.queue.Add(i)
	}
	return 0, nil
}

// ownership tells who began the last release of a workload.
type ownership int

const (
	// ownerGone is a Rollout that does not exist, or no owner.
	ownerGone ownership = iota
	// ownerAlive is a Rollout that names the workload.
	ownerAlive
	// ownerForeign is another host, or a Rollout in a namespace that this Controller does not watch.
	ownerForeign
)

func (c *Controller) owner(observed *pb.BatchContext, others []*v1alpha1.Rollout) ownership {
	namespace, name, ours := ownerOf(observed.GetOwner())
	if observed.GetOwner() == "" {
		return ownerGone
	}
	if !ours || c.Namespace != "" && c.Namespace != namespace {
		return ownerForeign
	}
	for _, ro := range others {
		if ro.Name == name {
			return ownerAlive
		}
	}
	if c.unreadable(types.NamespacedName{Namespace: namespace, Name: name}) {
		return ownerAlive
	}
	return ownerGone
}

func (c *Controller) look(ctx context.Context, key types.NamespacedName) (*pb.BatchContext, error) {
	return rollout.Target{Driver: c.Driver, Ref: &pb.WorkloadRef{Namespace: key.Namespace, Name: key.Name}}.Look(ctx)
}
