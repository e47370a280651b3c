// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"context"
	"time"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	"github.com/lockstep-rollouts/lockstep/plugin/rollout"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// enqueueOrphans enqueues workloads whose Rollout was deleted while no Controller ran.
func (c *Controller) enqueueOrphans(ctx context.Context) {
	if c.Adopted == nil {
		return
	}
	var workloads []types.NamespacedName
	err := wait.PollUntilContextCancel(ctx, requeueBlocked, true, func(ctx context.Context) (listed bool, err error) {
		workloads, err = c.Adopted(ctx)
		if err == nil || apierrors.IsForbidden(err) {
			return true, err
		}
		c.Logger.Warn("look for workloads of deleted Rollouts", "error", err)
		return false, nil
	})
	if apierrors.IsForbidden(err) {
		c.Logger.Info("not looking for workloads of Rollouts that were deleted in the past", "error", err)
	}
	for _, workload := range workloads {
		var observed *pb.BatchContext
		// An error is retryable while the driver fills its caches, or is away.
		_ = wait.PollUntilContextCancel(ctx, requeueSoon, true, func(ctx context.Context) (bool, error) {
			observed, err = c.look(ctx, workload)
			return !converge.Retryable(err), nil
		})
		if _, _, ours := ownerOf(observed.GetOwner()); err == nil && ours {
			c.queue.Add(item{workload: true, NamespacedName: workload})
		}
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
	goal := converge.Goal{
		Kind: converge.Disown, Workload: plugin.RefOf(key.Namespace, key.Name), Owner: observed.GetOwner(),
		Why: "its Rollout is gone",
	}
	switch owner := c.owner(observed, others); {
	case owner == ownerForeign && plugin.InFlight(observed):
		return requeueBlocked, nil
	case owner == ownerAlive, len(others) > 0 && !plugin.InFlight(observed):
		for _, i := range c.requests(key) {
			c.queue.Add(i) // another Rollout takes the workload over
		}
		return 0, nil
	}
	m := converge.Next(goal, observed)
	if m.Outcome != converge.Wait {
		c.Logger.Info(m.Why, "workload", key.String())
	}
	switch m.Outcome {
	case converge.Call:
		_, err = converge.Perform(ctx, c.Driver, m)
		return requeueSoon, err // the release has an end, and then the hold
	case converge.Wait:
		return requeueSoon, nil
	case converge.Held:
		return requeueBlocked, nil
	default:
		return 0, nil
	}
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
	return rollout.Target{Driver: c.Driver, Ref: plugin.RefOf(key.Namespace, key.Name)}.Look(ctx)
}
