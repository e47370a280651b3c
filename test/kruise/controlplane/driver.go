// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"fmt"
	"time"

	"github.com/openkruise/rollouts/api/v1beta1"
	batchcontext "github.com/openkruise/rollouts/pkg/controller/batchrelease/context"
	"github.com/openkruise/rollouts/pkg/controller/batchrelease/control"
	"github.com/openkruise/rollouts/pkg/util"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/kruise/batchrelease"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// callTimeout bounds a call: Kruise's interfaces have no context.
const callTimeout = 10 * time.Second

// workload is one workload as the driver sees it, for the length of one of Kruise's rounds.
type workload struct {
	driver *plugin.Client
	key    types.NamespacedName
	// context is nil before look.
	context *pb.BatchContext
}

func (w *workload) ref() *pb.WorkloadRef {
	return &pb.WorkloadRef{Namespace: w.key.Namespace, Name: w.key.Name}
}

// call runs f within callTimeout.
func (w *workload) call(f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	return f(ctx)
}

// look asks the driver where the workload stands. Kruise tells by the error whether there is none.
func (w *workload) look() error {
	return w.call(func(ctx context.Context) error {
		answer, err := w.driver.CalculateBatchContext(ctx, &pb.CalculateBatchContextRequest{Workload: w.ref()})
		if plugin.Reason(err) == pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND {
			return control.GenerateNotFoundError(w.key.String(), "LeaderWorkerSet")
		}
		w.context = answer.GetContext()
		return err
	})
}

// info is the workload as Kruise counts it. Kruise takes one whose status lags for untrustworthy; a BatchContext never does.
func (w *workload) info() *util.WorkloadInfo {
	c := w.context
	info := &util.WorkloadInfo{LogKey: w.key.String(), Replicas: c.GetReplicas()}
	info.Namespace, info.Name = w.key.Namespace, w.key.Name
	info.Status.Replicas = c.GetReplicas()
	info.Status.UpdatedReplicas, info.Status.UpdatedReadyReplicas = c.GetUpdated(), c.GetUpdatedReady()
	if c.GetState() == pb.State_STATE_COMPLETED {
		info.Status.UpdatedReplicas = c.GetReplicas()
	}
	info.Status.StableRevision, info.Status.UpdateRevision = c.GetStableRevision(), c.GetTemplateRevision()
	return info
}

// initialize begins the release, unless it has begun, and returns nil once it is prepared.
func (w *workload) initialize(release *v1beta1.BatchRelease) error {
	policy, err := batchrelease.Policy(&release.Spec.ReleasePlan, w.context.GetReplicas())
	if err != nil {
		return err
	}
	if batchrelease.Began(release, w.context) && plugin.InFlight(w.context) {
		return w.prepared()
	}
	return w.call(func(ctx context.Context) error {
		answer, err := w.driver.Initialize(ctx, &pb.InitializeRequest{
			Workload: w.ref(), ReleaseId: batchrelease.ReleaseID(release, w.context.GetTemplateRevision()),
			Owner: batchrelease.Owner(release), Policy: policy,
		})
		if err != nil {
			return err
		}
		w.context = answer.GetContext()
		return w.prepared()
	})
}

// prepared is the error by which Kruise tries again.
func (w *workload) prepared() error {
	if w.context.GetState() == pb.State_STATE_PREPARING {
		return fmt.Errorf("release %s is being prepared: %s", w.context.GetReleaseId(), w.context.GetMessage())
	}
	return nil
}

// batch is Kruise's view of the current batch. Kruise compares counts itself.
func (w *workload) batch(release *v1beta1.BatchRelease) *batchcontext.BatchContext {
	c := w.context
	current := release.Status.CanaryStatus.CurrentBatch
	wanted := int32(control.CalculateBatchReplicas(release, int(c.GetReplicas()), int(current)))
	return &batchcontext.BatchContext{
		// The driver labels pods: Kruise has none to look at.
		RolloutID: release.Spec.ReleasePlan.RolloutID, CurrentBatch: current, UpdateRevision: c.GetUpdateRevision(),
		Replicas: c.GetReplicas(), PlannedUpdatedReplicas: wanted, DesiredUpdatedReplicas: wanted,
		UpdatedReplicas: c.GetUpdated(), UpdatedReadyReplicas: c.GetUpdatedReady(),
		FailureThreshold: release.Spec.ReleasePlan.FailureThreshold,
	}
}

// upgrade asks for the groups of a batch.
func (w *workload) upgrade(b *batchcontext.BatchContext) error {
	return w.call(func(ctx context.Context) error {
		_, err := w.driver.UpgradeBatch(ctx, &pb.UpgradeBatchRequest{
			Workload: w.ref(), ReleaseId: w.context.GetReleaseId(), UpdateRevision: b.UpdateRevision,
			Target: &pb.UpgradeBatchRequest_Groups{Groups: fmt.Sprint(b.DesiredUpdatedReplicas)},
		})
		return err
	})
}

// end finalizes the release of this BatchRelease, if it is in flight. wait has it fail until the driver is done, which is how Kruise waits.
func (w *workload) end(release *v1beta1.BatchRelease, intent pb.FinalizeIntent, wait bool) error {
	if !batchrelease.Began(release, w.context) || !plugin.InFlight(w.context) {
		return nil
	}
	request := &pb.FinalizeRequest{Workload: w.ref(), ReleaseId: w.context.GetReleaseId(), Intent: intent}
	if intent == pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE {
		request.UpdateRevision = w.context.GetUpdateRevision()
	}
	return w.call(func(ctx context.Context) error {
		answer, err := w.driver.Finalize(ctx, request)
		if err != nil {
			return err
		}
		w.context = answer.GetContext()
		if wait && !answer.GetDone() {
			return fmt.Errorf("release %s has not ended: %s", request.GetReleaseId(), w.context.GetMessage())
		}
		return nil
	})
}

// intent is what Kruise means by finalizing: to promote without batchPartition, and else to leave the stable pods as they are.
func intent(release *v1beta1.BatchRelease) pb.FinalizeIntent {
	if release.Spec.ReleasePlan.BatchPartition == nil {
		return pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE
	}
	return pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK
}
