// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

const (
	// patience bounds each wait; the run fails after it.
	patience = 2 * time.Minute
	// pause lets controllers and events come to rest between two releases.
	pause = time.Second

	groups         = 4
	groupSize      = 2
	maxUnavailable = 1
)

// workload is one LeaderWorkerSet under measurement.
type workload struct {
	name    string
	version int

	startup time.Duration // of each pod
}

func (w *workload) image() string { return fmt.Sprintf("example.com/model:v%d", w.version) }

func (w *workload) ref() *pb.WorkloadRef { return &pb.WorkloadRef{Namespace: namespace, Name: w.name} }

// deploy creates a workload and waits until it is ready.
func (b *bench) deploy(ctx context.Context, p *pods, w *workload, replicas, size int) error {
	w.version = 1
	_, err := b.sets.LeaderworkersetV1().LeaderWorkerSets(namespace).Create(ctx, w.object(replicas, size), metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create LeaderWorkerSet %s: %w", w.name, err)
	}
	if _, err := p.until(ctx, w.name+" is ready", func() bool { return p.serves(w.name, w.image(), replicas*size) }); err != nil {
		return err
	}
	return b.rest(ctx, w)
}

func (w *workload) object(replicas, size int) *lws.LeaderWorkerSet {
	template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "model", Image: w.image()}},
	}}
	template.Annotations = map[string]string{}
	if w.startup > 0 {
		template.Annotations[cluster.AnnotationStartup] = w.startup.String()
	}
	return &lws.LeaderWorkerSet{
		ObjectMeta: metav1.ObjectMeta{Name: w.name},
		Spec: lws.LeaderWorkerSetSpec{
			Replicas:             ptr.To(int32(replicas)),
			StartupPolicy:        lws.LeaderCreatedStartupPolicy,
			LeaderWorkerTemplate: lws.LeaderWorkerTemplate{WorkerTemplate: template, Size: ptr.To(int32(size))},
			RolloutStrategy: lws.RolloutStrategy{
				Type: lws.RollingUpdateStrategyType,
				RollingUpdateConfiguration: &lws.RollingUpdateConfiguration{
					MaxUnavailable: intstr.FromInt32(maxUnavailable), MaxSurge: intstr.FromInt32(0),
				},
			},
		},
	}
}

// change sets the next image: what a user does, and what starts either clock.
func (b *bench) change(ctx context.Context, w *workload) error {
	w.version++
	patch := fmt.Sprintf(`[{"op":"replace","path":"/spec/leaderWorkerTemplate/workerTemplate/spec/containers/0/image","value":%q}]`, w.image())
	_, err := b.sets.LeaderworkersetV1().LeaderWorkerSets(namespace).
		Patch(ctx, w.name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("change image of LeaderWorkerSet %s: %w", w.name, err)
	}
	return nil
}

// rest waits until LWS reports that all groups are updated and ready, and a little longer, so that this change does not affect
// the next.
func (b *bench) rest(ctx context.Context, w *workload) error {
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		now, err := b.sets.LeaderworkersetV1().LeaderWorkerSets(namespace).Get(ctx, w.name, metav1.GetOptions{})
		if err != nil {
			return false, fmt.Errorf("get LeaderWorkerSet %s: %w", w.name, err)
		}
		s := now.Status
		return s.ObservedGeneration == now.Generation && s.ReadyReplicas == *now.Spec.Replicas && s.Replicas == *now.Spec.Replicas, nil
	})
	if err != nil {
		return fmt.Errorf("wait until LWS reports %s ready: %w", w.name, err)
	}
	return sleep(ctx, pause)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
