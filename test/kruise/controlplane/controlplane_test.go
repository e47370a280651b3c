// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"testing"

	"github.com/openkruise/rollouts/api/v1beta1"
	"github.com/openkruise/rollouts/pkg/controller/batchrelease/control"
	"github.com/openkruise/rollouts/pkg/controller/batchrelease/control/bluegreenstyle"
	"github.com/openkruise/rollouts/pkg/controller/batchrelease/control/canarystyle"
	"github.com/openkruise/rollouts/pkg/controller/batchrelease/control/partitionstyle"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

var (
	key = types.NamespacedName{Namespace: "default", Name: "vllm"}
	gvk = schema.GroupVersionKind{Group: "leaderworkerset.x-k8s.io", Version: "v1", Kind: "LeaderWorkerSet"}
)

// round is one of Kruise's: a control plane that was made anew.
type round func(*v1beta1.BatchRelease) control.Interface

// planes are Kruise's own control planes, unmodified, over a driver behind gRPC.
func planes(driver *plugin.Client) map[v1beta1.RollingStyleType]round {
	return map[v1beta1.RollingStyleType]round{
		v1beta1.CanaryRollingStyle: func(r *v1beta1.BatchRelease) control.Interface {
			return canarystyle.NewControlPlane(NewCanary(driver), nil, nil, r, &r.Status, key)
		},
		v1beta1.BlueGreenRollingStyle: func(r *v1beta1.BatchRelease) control.Interface {
			return bluegreenstyle.NewControlPlane(NewBlueGreen(driver), nil, nil, r, &r.Status, key, gvk)
		},
		v1beta1.PartitionRollingStyle: func(r *v1beta1.BatchRelease) control.Interface {
			return partitionstyle.NewControlPlane(NewPartition(driver), nil, nil, r, &r.Status, key, gvk)
		},
	}
}

// each runs a test under every style, with a workload of 4 groups at v2 whose groups run v1, and a BatchRelease of two batches.
func each(t *testing.T, test func(t *testing.T, b *fixture)) {
	t.Helper()
	for _, style := range []v1beta1.RollingStyleType{v1beta1.CanaryRollingStyle, v1beta1.BlueGreenRollingStyle, v1beta1.PartitionRollingStyle} {
		t.Run(string(style), func(t *testing.T) {
			fake := plugintest.NewFakeDriver()
			fake.SetWorkload(key.Namespace, key.Name, 4, "v1")
			client := plugintest.Connect(t, fake, fake)
			if _, err := client.Adopt(t.Context(), &pb.AdoptRequest{Workload: &pb.WorkloadRef{Namespace: key.Namespace, Name: key.Name}}); err != nil {
				t.Fatal(err)
			}
			fake.SetWorkload(key.Namespace, key.Name, 4, "v2")
			partition := int32(0)
			b := &fixture{T: t, fake: fake, client: client, round: planes(client)[style], release: &v1beta1.BatchRelease{
				ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: "0123"},
				Spec: v1beta1.BatchReleaseSpec{ReleasePlan: v1beta1.ReleasePlan{
					RollingStyle: style, BatchPartition: &partition,
					Batches: []v1beta1.ReleaseBatch{{CanaryReplicas: intstr.FromString("50%")}, {CanaryReplicas: intstr.FromInt(4)}},
				}},
			}}
			test(t, b)
		})
	}
}

type fixture struct {
	*testing.T
	fake    *plugintest.FakeDriver
	client  *plugin.Client
	release *v1beta1.BatchRelease
	round   round
}

// do is one round of Kruise's.
func (b *fixture) do(what string, step func(control.Interface) error) {
	b.Helper()
	if err := step(b.round(b.release)); err != nil {
		b.Fatalf("%s: %v", what, err)
	}
}

// begin initializes and brings up the batches up to one.
func (b *fixture) begin(last int32) {
	b.Helper()
	b.do("initialize", control.Interface.Initialize)
	for i := range last + 1 {
		b.release.Status.CanaryStatus.CurrentBatch = i
		if err := b.round(b.release).EnsureBatchPodsReadyAndLabeled(); err == nil {
			b.Fatalf("batch %d is ready before it was asked for", i)
		}
		b.do("upgrade", control.Interface.UpgradeBatch)
		b.do("verify", control.Interface.EnsureBatchPodsReadyAndLabeled)
	}
}

func (b *fixture) context() *pb.BatchContext {
	b.Helper()
	answer, err := b.client.CalculateBatchContext(b.Context(), &pb.CalculateBatchContextRequest{
		Workload: &pb.WorkloadRef{Namespace: key.Namespace, Name: key.Name},
	})
	if err != nil {
		b.Fatal(err)
	}
	return answer.GetContext()
}

func (b *fixture) mustSee(want control.WorkloadEventType) {
	b.Helper()
	got, _, _ := b.round(b.release).SyncWorkloadInformation()
	if got != want {
		b.Errorf("event %q, want %q", got, want)
	}
}

func TestRelease(t *testing.T) {
	each(t, func(t *testing.T, b *fixture) {
		b.begin(0)
		s := b.release.Status
		if s.StableRevision != "v1" || s.UpdateRevision != "v2" || s.ObservedWorkloadReplicas != 4 {
			t.Errorf("status %+v", s)
		}
		if c := b.context(); c.GetUpdatedReady() != 2 || c.GetOwner() != "kruise-batchrelease/default/vllm" {
			t.Errorf("after batch 0 the driver is at %v", c)
		}
		b.release.Status.CanaryStatus.CurrentBatch = 1
		b.do("upgrade", control.Interface.UpgradeBatch)
		b.do("verify", control.Interface.EnsureBatchPodsReadyAndLabeled)
		b.release.Spec.ReleasePlan.BatchPartition = nil
		b.release.Spec.ReleasePlan.FinalizingPolicy = v1beta1.WaitResumeFinalizingPolicyType
		for range 2 {
			b.do("finalize", control.Interface.Finalize)
		}
		if c := b.context(); c.GetState() != pb.State_STATE_COMPLETED {
			t.Errorf("at the end the driver is at %v", c)
		}
		b.mustSee(control.WorkloadNormalState)
	})
}

func TestDeletedInMidRelease(t *testing.T) {
	each(t, func(t *testing.T, b *fixture) {
		b.begin(0)
		for range 2 {
			b.do("finalize", control.Interface.Finalize)
		}
		if c := b.context(); c.GetState() != pb.State_STATE_ROLLED_BACK {
			t.Errorf("at the end the driver is at %v", c)
		}
	})
}

func TestEvents(t *testing.T) {
	each(t, func(_ *testing.T, b *fixture) {
		b.begin(0)
		b.fake.SetWorkload(key.Namespace, key.Name, 6, "v2")
		b.mustSee(control.WorkloadReplicasChanged)
		b.release.Status.ObservedWorkloadReplicas = 6
		b.fake.SetWorkload(key.Namespace, key.Name, 6, "v3")
		b.mustSee(control.WorkloadPodTemplateChanged)
	})
}

// The restored template is a rollback for Kruise, which the driver completes without a host. The canary style has no such event.
func TestTemplateRestored(t *testing.T) {
	each(t, func(t *testing.T, b *fixture) {
		if b.release.Spec.ReleasePlan.RollingStyle == v1beta1.CanaryRollingStyle {
			return
		}
		b.begin(0)
		b.fake.SetWorkload(key.Namespace, key.Name, 4, "v1")
		b.mustSee(control.WorkloadRollbackInBatch)
		b.do("finalize", control.Interface.Finalize)
		if c := b.context(); c.GetState() != pb.State_STATE_ROLLED_BACK {
			t.Errorf("at the end the driver is at %v", c)
		}
	})
}

func TestWorkloadGone(t *testing.T) {
	client := plugintest.Connect(t, plugintest.NewFakeDriver(), plugintest.NewFakeDriver())
	for style, round := range planes(client) {
		partition := int32(0)
		r := &v1beta1.BatchRelease{Spec: v1beta1.BatchReleaseSpec{ReleasePlan: v1beta1.ReleasePlan{
			RollingStyle: style, BatchPartition: &partition, Batches: []v1beta1.ReleaseBatch{{CanaryReplicas: intstr.FromInt(1)}},
		}}}
		if event, _, err := round(r).SyncWorkloadInformation(); event != control.WorkloadHasGone || err == nil {
			t.Errorf("%s: event %q, %v", style, event, err)
		}
		if err := round(r).Finalize(); err != nil {
			t.Errorf("%s: finalize: %v", style, err)
		}
	}
}
