// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"github.com/openkruise/rollouts/api/v1beta1"
	batchcontext "github.com/openkruise/rollouts/pkg/controller/batchrelease/context"
	"github.com/openkruise/rollouts/pkg/controller/batchrelease/control"
	"github.com/openkruise/rollouts/pkg/controller/batchrelease/control/canarystyle"
	"github.com/openkruise/rollouts/pkg/util"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/kruise/batchrelease"
)

// canary is both of Kruise's halves: the driver keeps stable and canary together.
type canary struct {
	workload
	// found is whether there is a canary of this BatchRelease.
	found bool
}

var _ canarystyle.Interface = (*canary)(nil)

// NewCanary is what Kruise's canarystyle.NewControlPlane takes, over a driver.
func NewCanary(driver *plugin.Client) canarystyle.NewInterfaceFunc {
	return func(_ client.Client, key types.NamespacedName) canarystyle.Interface {
		return &canary{workload: workload{driver: driver, key: key}}
	}
}

// BuildStableController looks at the workload.
func (c *canary) BuildStableController() (canarystyle.StableInterface, error) {
	return c, c.look()
}

// BuildCanaryController looks at the release, of which there is none before Initialize.
func (c *canary) BuildCanaryController(release *v1beta1.BatchRelease) (canarystyle.CanaryInterface, error) {
	if err := c.look(); err != nil {
		return c, err
	}
	if c.found = batchrelease.Began(release, c.context); !c.found {
		return c, control.GenerateNotFoundError(c.key.String()+"-canary", "LeaderWorkerSet")
	}
	return c, nil
}

// GetStableInfo says where the user's workload stands.
func (c *canary) GetStableInfo() *util.WorkloadInfo {
	info := c.info()
	if info.Status.UpdatedReplicas != info.Replicas {
		info.Status.UpdatedReplicas = 0 // Groups beside the workload are none of its own.
	}
	return info
}

// GetCanaryInfo says where the added groups stand. Nil means that there are none.
func (c *canary) GetCanaryInfo() *util.WorkloadInfo {
	if !c.found {
		return nil
	}
	info := c.info()
	info.Replicas = c.context.GetDesired()
	info.Status.Replicas, info.Status.AvailableReplicas = c.context.GetUpdated(), c.context.GetUpdatedReady()
	info.Status.UpdateRevision = c.context.GetUpdateRevision()
	return info
}

// Initialize takes the workload under hold and begins the release.
func (c *canary) Initialize(release *v1beta1.BatchRelease) error { return c.initialize(release) }

// Create returns once the canary is prepared, at 0 groups.
func (c *canary) Create(release *v1beta1.BatchRelease) error {
	c.found = true
	return c.initialize(release)
}

// CalculateBatchContext says where the batch stands.
func (c *canary) CalculateBatchContext(release *v1beta1.BatchRelease) (*batchcontext.BatchContext, error) {
	return c.batch(release), nil
}

// UpgradeBatch scales the canary.
func (c *canary) UpgradeBatch(b *batchcontext.BatchContext) error { return c.upgrade(b) }

// Finalize promotes without batchPartition, and waits if Kruise's plan says so.
func (c *canary) Finalize(release *v1beta1.BatchRelease) error {
	if c.context == nil || release.Spec.ReleasePlan.BatchPartition != nil {
		return nil
	}
	return c.end(release, intent(release), control.ShouldWaitResume(release))
}

// Delete removes the canary where Finalize has not, and the driver does the rest on its own.
func (c *canary) Delete(release *v1beta1.BatchRelease) error {
	if c.context == nil || release.Spec.ReleasePlan.BatchPartition == nil {
		return nil
	}
	return c.end(release, intent(release), true)
}
