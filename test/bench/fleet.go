// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// fleetGroups is the number of groups of each LeaderWorkerSet of the fleet. Their size is scaleSize.
const fleetGroups = 125

// fleetFigures are about a driver in a cluster with many LeaderWorkerSets, none of them adopted.
type fleetFigures struct {
	Workloads int `json:"workloads"`
	Pods      int `json:"pods"`
	// Synced is from exec to SERVING.
	Synced     float64 `json:"synced"`
	LiveMB     float64 `json:"liveMB"`
	ResidentMB float64 `json:"residentMB"`
	PeakMB     float64 `json:"peakMB"`
	// ObservedMB is the resident memory after each workload's groups were read.
	ObservedMB float64 `json:"observedMB"`
	// MillionMB is the resident memory after one of them, and a workload without a pod, were scaled to a million groups and read.
	MillionMB float64 `json:"millionMB"`
}

// measureFleet creates LeaderWorkerSets and their pods as objects only, while no controller runs, and measures the driver's memory.
func (b *bench) measureFleet(ctx context.Context, r *report) error {
	if err := b.stopControllers(ctx); err != nil {
		return err
	}
	f := &fleetFigures{Workloads: max(b.fleet/scaleSize/fleetGroups, 1)}
	f.Pods = f.Workloads * fleetGroups * scaleSize
	b.logf("making %d pods of %d LeaderWorkerSets", f.Pods, f.Workloads)
	g, making := errgroup.WithContext(ctx)
	g.SetLimit(2 * seeders)
	for i := range f.Workloads {
		if err := b.createFleetSet(ctx, fleetName(i), fleetGroups, scaleSize); err != nil {
			return err
		}
		for pod := range fleetGroups * scaleSize {
			g.Go(func() error { return b.createFleetPod(making, fleetName(i), pod/scaleSize, pod%scaleSize, scaleSize) })
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	d, err := b.startDriver(ctx)
	if err != nil {
		return err
	}
	defer d.stop()
	f.Synced = seconds(d.serves)
	if err := f.measure(ctx, b, d); err != nil {
		return err
	}
	r.Fleet = f
	return nil
}

func (f *fleetFigures) measure(ctx context.Context, b *bench, d *driver) error {
	read := func(into *float64, sets ...string) error {
		for range 3 {
			for _, name := range sets {
				ref := &pb.WorkloadRef{Namespace: namespace, Name: name}
				if _, err := d.CalculateBatchContext(ctx, &pb.CalculateBatchContextRequest{Workload: ref, IncludeGroups: true}); err != nil {
					return fmt.Errorf("read %s: %w", name, err)
				}
			}
		}
		resident, peak, _, err := d.memory()
		*into, f.PeakMB = float64(resident)/mb, float64(peak)/mb
		return err
	}
	if err := read(&f.ResidentMB); err != nil {
		return err
	}
	var all []string
	for i := range f.Workloads {
		all = append(all, fleetName(i))
	}
	if err := read(&f.ObservedMB, all...); err != nil {
		return err
	}
	const million = "million"
	if err := b.createFleetSet(ctx, million, 1_000_000, scaleSize); err != nil {
		return err
	}
	time.Sleep(time.Second) // the driver observes it
	return firstOf(read(&f.MillionMB, million), f.live(ctx, d))
}

// live reads until the garbage has been collected twice.
func (f *fleetFigures) live(ctx context.Context, d *driver) (err error) {
	f.LiveMB, err = liveHeap(ctx, d, fleetName(0))
	return err
}

func fleetName(i int) string { return fmt.Sprintf("language-model-%d", i) }

// stopControllers stops all controllers, once, and removes LWS's webhooks.
func (b *bench) stopControllers(ctx context.Context) error {
	if b.controllersStopped {
		return nil
	}
	for _, name := range []string{cluster.LWS, cluster.ControllerManager, cluster.Scheduler, cluster.KWOK} {
		if err := b.cluster.StopComponent(ctx, name); err != nil {
			return err
		}
	}
	b.controllersStopped = true
	return b.removeWebhooks(ctx)
}

func fleetTemplate() corev1.PodTemplateSpec {
	env := make([]corev1.EnvVar, 0, 20)
	for i := range 20 {
		env = append(env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", i), Value: "a value of about forty characters, or so"})
	}
	return corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "server", Image: "registry.example.com/inference/server:v1", Command: []string{"serve", "--model", "/models/large"}, Env: env,
	}}}}
}

func (b *bench) createFleetSet(ctx context.Context, name string, replicas, size int32) error {
	w := &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{Name: name}}
	w.Spec.Replicas = ptr.To(replicas)
	w.Spec.LeaderWorkerTemplate = lws.LeaderWorkerTemplate{Size: ptr.To(size), WorkerTemplate: fleetTemplate()}
	w.Spec.RolloutStrategy.Type = lws.RollingUpdateStrategyType
	w.Spec.StartupPolicy = lws.LeaderCreatedStartupPolicy
	if _, err := b.sets.LeaderworkersetV1().LeaderWorkerSets(namespace).Create(ctx, w, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create LeaderWorkerSet %s: %w", name, err)
	}
	return nil
}

// createFleetPod creates a ready pod, with the labels and annotations of LWS.
func (b *bench) createFleetPod(ctx context.Context, set string, group, worker, size int) error {
	name := fmt.Sprintf("%s-%d", set, group)
	if worker > 0 {
		name = fmt.Sprintf("%s-%d", name, worker)
	}
	pod := &corev1.Pod{Spec: fleetTemplate().Spec}
	pod.Name, pod.Spec.NodeName = name, "node"
	pod.Labels = map[string]string{
		lws.SetNameLabelKey: set, lws.GroupIndexLabelKey: fmt.Sprint(group), lws.WorkerIndexLabelKey: fmt.Sprint(worker),
		lws.RevisionKey: "7d4f5b6c89", lws.GroupUniqueHashLabelKey: fmt.Sprintf("%040d", group),
	}
	pod.Annotations = map[string]string{lws.SizeAnnotationKey: fmt.Sprint(size)}
	made, err := b.kube.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create pod %s: %w", name, err)
	}
	now := metav1.Now()
	made.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1", StartTime: &now, Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: now},
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now},
	}}
	if _, err := b.kube.CoreV1().Pods(namespace).UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update status of pod %s: %w", name, err)
	}
	return nil
}
