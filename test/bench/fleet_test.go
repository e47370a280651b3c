// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package bench

import (
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
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
func (b *bench) measureFleet() {
	b.stopControllers()
	row := b.report.table("FLEET at rest", "LeaderWorkerSets", "pods", "exec until SERVING", "live heap", "resident (peak)", "CPU per change of a pod")
	workloads, pods := 0, 0
	for i, f := range fleets {
		f.groups, f.workloads = smaller(f.groups), smaller(f.workloads)
		b.logf("making %d pods of %d LeaderWorkerSets", f.workloads*f.groups*f.size, f.workloads)
		b.createFleet(f)
		workloads, pods = workloads+f.workloads, pods+f.workloads*f.groups*f.size
		s := b.serve()
		resident, peak, cpu := b.beside(s, f)
		live := b.liveHeap(s, f.set(0))
		row(f.name, "%d|%d|%.2f s|%.0f MB|%.0f MB (%.0f)|%.3f ms", workloads, pods, s.serves.Seconds(), live, resident, peak, cpu)
		if i == len(fleets)-1 {
			b.report.aim(peak < 150, fmt.Sprintf("peak resident memory at %d pods of %d LeaderWorkerSets", pods, workloads), "below 150 MB", "%.0f MB", peak)
		}
		s.stop()
	}
}

// beside returns the memory of a driver that has read all groups of a fleet, in MB, and its CPU time per change of a pod, in milliseconds.
func (b *bench) beside(s *server, f fleet) (resident, peak, cpu float64) {
	_, err := s.Adopt(b.ctx, &pb.AdoptRequest{Workload: &pb.WorkloadRef{Namespace: namespace, Name: f.set(0)}})
	b.must(err)
	for i := range f.workloads {
		b.must(s.read(b.ctx, f.set(i)))
	}
	resident, peak = s.memory()
	events, before := smaller(fleetEvents), s.CPU()
	for i := range events {
		// The pods become unready one after another, and then ready again.
		b.must(b.setReady(b.ctx, fmt.Sprintf("%s-%d-1", f.set(0), i%f.groups), i/f.groups%2 == 1))
	}
	// The driver is idle once it has handled the last change.
	for last := time.Duration(-1); last != s.CPU(); {
		last = s.CPU()
		b.must(sleep(b.ctx, pause))
	}
	return resident, peak, 1000 * (s.CPU() - before).Seconds() / float64(events)
}

func (b *bench) createFleet(f fleet) {
	g, ctx := errgroup.WithContext(b.ctx)
	g.SetLimit(2 * seeders)
	for i := range f.workloads {
		g.Go(func() error {
			set := (&workload{name: f.set(i)}).object(f.groups, f.size)
			set.Spec.LeaderWorkerTemplate.WorkerTemplate = fleetTemplate()
			_, err := b.sets.Create(ctx, set, metav1.CreateOptions{})
			return err
		})
		for pod := range f.groups * f.size {
			g.Go(func() error {
				now := metav1.Now()
				return b.createPod(ctx, f.pod(f.set(i), pod/f.size, pod%f.size), corev1.PodStatus{
					Phase: corev1.PodRunning, PodIP: "10.0.0.1", StartTime: &now, Conditions: []corev1.PodCondition{
						{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: now},
						{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now},
					},
				})
			})
		}
	}
	b.must(g.Wait())
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

// pod returns a pod with the labels and annotations of LWS.
func (f fleet) pod(set string, group, worker int) *corev1.Pod {
	pod := &corev1.Pod{Spec: fleetTemplate().Spec}
	pod.Name, pod.Spec.NodeName = fmt.Sprintf("%s-%d", set, group), "node"
	if worker > 0 {
		pod.Name += fmt.Sprintf("-%d", worker)
	}
	pod.Labels = map[string]string{
		lws.SetNameLabelKey: set, lws.GroupIndexLabelKey: fmt.Sprint(group), lws.WorkerIndexLabelKey: fmt.Sprint(worker),
		lws.RevisionKey: "7d4f5b6c89", lws.GroupUniqueHashLabelKey: fmt.Sprintf("%040d", group),
	}
	pod.Annotations = map[string]string{lws.SizeAnnotationKey: fmt.Sprint(f.size)}
	return pod
}
