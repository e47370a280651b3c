// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"github.com/openkruise/rollouts/api/v1beta1"
	batchcontext "github.com/openkruise/rollouts/pkg/controller/batchrelease/context"
	"github.com/openkruise/rollouts/pkg/controller/batchrelease/control"
	"github.com/openkruise/rollouts/pkg/controller/batchrelease/control/partitionstyle"
	"github.com/openkruise/rollouts/pkg/util"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-rollouts/lockstep/plugin"
)

// partition is a workload under Kruise's partition-style control plane.
type partition struct{ workload }

var _ partitionstyle.Interface = (*partition)(nil)

// NewPartition is what Kruise's partitionstyle.NewControlPlane takes, over a driver.
func NewPartition(driver *plugin.Client) partitionstyle.NewInterfaceFunc {
	return func(_ client.Client, key types.NamespacedName, _ schema.GroupVersionKind) partitionstyle.Interface {
		return &partition{workload{driver: driver, key: key}}
	}
}

// BuildController looks at the workload.
func (p *partition) BuildController() (partitionstyle.Interface, error) { return p, p.look() }

// GetWorkloadInfo says where it stands.
func (p *partition) GetWorkloadInfo() *util.WorkloadInfo { return p.info() }

// ListOwnedPods is for labels, which the driver sets.
func (p *partition) ListOwnedPods() ([]*corev1.Pod, error) { return nil, nil }

// CalculateBatchContext says where the batch stands.
func (p *partition) CalculateBatchContext(release *v1beta1.BatchRelease) (*batchcontext.BatchContext, error) {
	return p.batch(release), nil
}

// Initialize takes the workload under hold and begins the release.
func (p *partition) Initialize(release *v1beta1.BatchRelease) error { return p.initialize(release) }

// UpgradeBatch replaces the groups of a batch in place.
func (p *partition) UpgradeBatch(c *batchcontext.BatchContext) error { return p.upgrade(c) }

// Finalize promotes without batchPartition, and otherwise rolls back, where Kruise's own leave updated pods for the next release. It
// waits for a promotion only if the plan says so.
func (p *partition) Finalize(release *v1beta1.BatchRelease) error {
	wait := release.Spec.ReleasePlan.BatchPartition != nil || control.ShouldWaitResume(release)
	return p.end(release, intent(release), wait)
}
