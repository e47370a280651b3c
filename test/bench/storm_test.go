// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package bench

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	// stormFleet is the number of workloads, of which stormReleases are released at once, and stormTimes as many with a limit.
	stormFleet, stormReleases, stormTimes = 1000, 20, 4
	// stormPatience bounds how long many releases may take.
	stormPatience = 15 * time.Minute
	// largeGroups and largeSize are those of the one large workload, and largeUnavailable is its maxUnavailable.
	largeGroups, largeSize, largeUnavailable = 200, 8, 20
)

// storm is a fleet whose drivers may change.
type storm struct {
	*bench

	pods *pods
	now  atomic.Pointer[server]
}

// measureStorm releases many workloads at once, in place, beside LeaderWorkerSet's own rolling updates of as many of the same fleet,
// and one large workload.
func (b *bench) measureStorm() {
	p, _ := b.watchPods()
	s, n := &storm{bench: b, pods: p}, smaller(stormReleases)
	fleet := make([]*workload, max(smaller(stormFleet), n*(stormTimes+1)))
	for i := range fleet {
		fleet[i] = &workload{name: "set-" + strconv.Itoa(i), version: 1}
	}
	b.logf("creating %d LeaderWorkerSets", len(fleet))
	s.timed(fleet, func(ctx context.Context, w *workload) error {
		_, err := b.sets.Create(ctx, w.object(groups, groupSize), metav1.CreateOptions{})
		return err
	})
	title := fmt.Sprintf("STORM: %d LeaderWorkerSets of %d groups of %d, released in place, in one batch", len(fleet), groups, groupSize)
	row := b.report.table(title, "natively", "by the driver")
	native := s.timed(fleet[:n], b.change)
	b.logf("native: %.1f s", native)
	s.throughDriver(row, native, fleet[n:n*(stormTimes+1)], n)
	s.large(row)
}

// throughDriver releases workloads with one driver without a limit, and then more of them with a driver that has one, and is killed in
// the middle.
func (s *storm) throughDriver(row func(string, string, ...any), native float64, fleet []*workload, n int) {
	s.must(s.renew())
	s.must(s.each(fleet, func(ctx context.Context, w *workload) error {
		_, err := s.now.Load().Adopt(ctx, &pb.AdoptRequest{Workload: w.ref()})
		return err
	}))
	s.logf("%d releases at once", n)
	before, begin := s.now.Load().CPU(), time.Now()
	took := s.timed(fleet[:n], s.release)
	cpu := s.now.Load().CPU() - before
	requests := 0
	for _, e := range s.requests(begin) {
		if e.Verb != "watch" {
			requests++
		}
	}
	_, peak := s.now.Load().memory()
	row(fmt.Sprintf("%d at once", n), "%.1f s|%.1f s (%.2fx), %d requests, %.2f s of CPU, peak %.0f MB",
		native, took, took/native, requests, cpu.Seconds(), peak)

	s.logf("%d releases with at most %d groups in flight, and a driver that is killed", len(fleet), n)
	limit := []string{"--max-groups-in-flight", strconv.Itoa(n)}
	s.must(s.renew(limit...))
	var ended atomic.Int64
	limited := s.timed(fleet, func(ctx context.Context, w *workload) error {
		if err := s.release(ctx, w); err != nil || ended.Add(1) != int64(len(fleet)/2) {
			return err
		}
		s.now.Load().End(syscall.SIGKILL, time.Minute)
		return s.renew(limit...)
	})
	row(fmt.Sprintf("%d at once, at most %d groups in flight, driver killed in the middle", len(fleet), n), "|%.1f s (%.2fx of %d times the first)",
		limited, limited/native/stormTimes, stormTimes)
}

// large updates one large workload natively, and then through the driver.
func (s *storm) large(row func(string, string, ...any)) {
	s.must(s.renew())
	groups, w := smaller(largeGroups), &workload{name: "large", version: 1}
	object := w.object(groups, largeSize)
	object.Spec.RolloutStrategy.RollingUpdateConfiguration.MaxUnavailable = intstr.FromInt32(largeUnavailable)
	s.logf("creating one LeaderWorkerSet of %d groups of %d", groups, largeSize)
	s.timedOf([]*workload{w}, groups*largeSize, func(ctx context.Context, _ *workload) error {
		_, err := s.sets.Create(ctx, object, metav1.CreateOptions{})
		return err
	})
	s.logf("updating it natively, and through the driver")
	native := s.timedOf([]*workload{w}, groups*largeSize, s.change)
	_, err := s.now.Load().Adopt(s.ctx, &pb.AdoptRequest{Workload: w.ref()})
	s.must(err)
	took := s.timedOf([]*workload{w}, groups*largeSize, s.release)
	row(fmt.Sprintf("one of %d groups of %d, maxUnavailable %d", groups, largeSize, largeUnavailable), "%.1f s|%.1f s (%.2fx)", native, took, took/native)
}

// renew starts a driver in place of the last.
func (s *storm) renew(args ...string) error {
	if last := s.now.Load(); last != nil {
		last.stop()
	}
	next, err := s.start(args...)
	if err == nil {
		s.now.Store(next)
	}
	return err
}

// release releases a workload in place, in one batch.
func (s *storm) release(ctx context.Context, w *workload) error {
	policy := &pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: []string{"100%"}}
	return s.bench.release(ctx, s.now.Load, w, policy, stormPatience)
}

// timed does something with each workload at once, and returns the seconds until all their groups are updated and ready.
func (s *storm) timed(all []*workload, do func(context.Context, *workload) error) float64 {
	return s.timedOf(all, groups*groupSize, do)
}

func (s *storm) timedOf(all []*workload, pods int, do func(context.Context, *workload) error) float64 {
	begin := time.Now()
	s.must(s.each(all, do))
	end := s.pods.until(stormPatience, fmt.Sprintf("%d workloads are updated", len(all)), func() bool { return s.pods.serve(pods, all...) })
	return end.Sub(begin).Seconds()
}

// each does something with all workloads at once. A release waits in its call, so all have to run.
func (s *storm) each(all []*workload, do func(context.Context, *workload) error) error {
	g, ctx := errgroup.WithContext(s.ctx)
	for _, w := range all {
		g.Go(func() error { return do(ctx, w) })
	}
	return g.Wait()
}

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
