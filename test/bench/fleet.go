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

// fleets are many LeaderWorkerSets, only the first of which is adopted. Each fleet is in the cluster of those before it.
var fleets = []fleet{{"small", 100, 4, 2}, {"large", 900, 4, 2}, {"language-model", 42, 125, scaleSize}}

type fleet struct {
	name                    string
	workloads, groups, size int
}

// fleetEvents is how many changes of pods are measured.
const fleetEvents = 5000

func (f fleet) set(i int) string { return fmt.Sprintf("%s-%d", f.name, i) }

// measureFleet creates LeaderWorkerSets and their pods as objects only, while no controller runs, and measures the driver beside them.
func (b *bench) measureFleet(ctx context.Context, r *report) error {
	if err := b.stopControllers(ctx); err != nil {
		return err
	}
	t := r.table("FLEET at rest", "LeaderWorkerSets", "pods", "exec until SERVING", "live heap", "resident (peak)", "CPU per change of a pod")
	workloads, pods := 0, 0
	for i, f := range fleets {
		f.groups = max(f.groups/b.divide, 1)
		f.workloads = max(f.workloads/b.divide, 1)
		b.logf("making %d pods of %d LeaderWorkerSets", f.workloads*f.groups*f.size, f.workloads)
		if err := b.createFleet(ctx, f); err != nil {
			return err
		}
		workloads, pods = workloads+f.workloads, pods+f.workloads*f.groups*f.size
		d, err := b.startDriver(ctx)
		if err != nil {
			return err
		}
		defer d.stop()
		m, cpu, err := b.beside(ctx, d, f)
		if err != nil {
			return err
		}
		live, err := liveHeap(ctx, d, f.set(0))
		if err != nil {
			return err
		}
		t.row(f.name, "%d|%d|%.2f s|%.0f MB|%.0f MB (%.0f)|%.3f ms", workloads, pods, seconds(d.serves), live, m.resident, m.peak, cpu)
		if i == len(fleets)-1 {
			r.aim(m.peak < 150, fmt.Sprintf("peak resident memory at %d pods of %d LeaderWorkerSets", pods, workloads), "below 150 MB", "%.0f MB", m.peak)
		}
		d.stop()
	}
	return nil
}

// beside returns the memory of a driver that has read all groups of a fleet, and its CPU time per change of a pod, in milliseconds.
func (b *bench) beside(ctx context.Context, d *driver, f fleet) (m memory, cpu float64, err error) {
	if _, err := d.Adopt(ctx, &pb.AdoptRequest{Workload: &pb.WorkloadRef{Namespace: namespace, Name: f.set(0)}}); err != nil {
		return m, 0, err
	}
	for i := range f.workloads {
		if err := d.read(ctx, f.set(i)); err != nil {
			return m, 0, err
		}
	}
	if m, err = d.memory(); err != nil {
		return m, 0, err
	}
	before, err := d.busy()
	if err != nil {
		return m, 0, err
	}
	for i := range fleetEvents / b.divide {
		// The pods become unready one after another, and then ready again.
		if err := b.setReady(ctx, fmt.Sprintf("%s-%d-1", f.set(0), i%f.groups), i/f.groups%2 == 1); err != nil {
			return m, 0, err
		}
	}
	// The driver is idle once it has handled the last change.
	for last := time.Duration(-1); ; {
		if err := sleep(ctx, pause); err != nil {
			return m, 0, err
		}
		after, err := d.busy()
		if err != nil || after == last {
			return m, 1000 * seconds(after-before) / fleetEvents * float64(b.divide), err
		}
		last = after
	}
}

// read has the driver answer with a workload's groups.
func (d *driver) read(ctx context.Context, name string) error {
	ref := &pb.WorkloadRef{Namespace: namespace, Name: name}
	_, err := d.CalculateBatchContext(ctx, &pb.CalculateBatchContextRequest{Workload: ref, IncludeGroups: true})
	return err
}

func (b *bench) createFleet(ctx context.Context, f fleet) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(2 * seeders)
	for i := range f.workloads {
		g.Go(func() error { return b.createFleetSet(ctx, f.set(i), int32(f.groups), int32(f.size)) })
		for pod := range f.groups * f.size {
			g.Go(func() error { return b.createFleetPod(ctx, f.set(i), pod/f.size, pod%f.size, f.size) })
		}
	}
	return g.Wait()
}

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
