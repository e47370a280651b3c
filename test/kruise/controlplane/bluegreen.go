// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"github.com/openkruise/rollouts/api/v1beta1"
	batchcontext "github.com/openkruise/rollouts/pkg/controller/batchrelease/context"
	"github.com/openkruise/rollouts/pkg/controller/batchrelease/control/bluegreenstyle"
	"github.com/openkruise/rollouts/pkg/util"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-rollouts/lockstep/plugin"
)

// blueGreen is a workload under Kruise's blue-green-style control plane.
type blueGreen struct{ workload }

var _ bluegreenstyle.Interface = (*blueGreen)(nil)

// NewBlueGreen is what Kruise's bluegreenstyle.NewControlPlane takes, over a driver.
func NewBlueGreen(driver *plugin.Client) bluegreenstyle.NewInterfaceFunc {
	return func(_ client.Client, key types.NamespacedName, _ schema.GroupVersionKind) bluegreenstyle.Interface {
		return &blueGreen{workload{driver: driver, key: key}}
	}
}

// BuildController looks at the workload.
func (b *blueGreen) BuildController() (bluegreenstyle.Interface, error) { return b, b.look() }

// GetWorkloadInfo says where it stands.
func (b *blueGreen) GetWorkloadInfo() *util.WorkloadInfo {
	info := b.info()
	// Kruise counts both sets, so that a complete green one is no promotion.
	info.Status.Replicas = b.context.GetTotal()
	return info
}

// ListOwnedPods is for labels, which the driver sets.
func (b *blueGreen) ListOwnedPods() ([]*corev1.Pod, error) { return nil, nil }

// CalculateBatchContext says where the batch stands.
func (b *blueGreen) CalculateBatchContext(release *v1beta1.BatchRelease) (*batchcontext.BatchContext, error) {
	return b.batch(release), nil
}

// Initialize takes the workload under hold and begins the release.
func (b *blueGreen) Initialize(release *v1beta1.BatchRelease) error { return b.initialize(release) }

// UpgradeBatch scales the green set.
func (b *blueGreen) UpgradeBatch(c *batchcontext.BatchContext) error { return b.upgrade(c) }

// Finalize ends the release and, as Kruise's own do, always waits.
func (b *blueGreen) Finalize(release *v1beta1.BatchRelease) error {
	return b.end(release, intent(release), true)
}
