// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/audit"
)

const (
	// stormPatience bounds how long many releases may take.
	stormPatience = 15 * time.Minute
	// largeGroups and largeSize are those of the one large workload, and largeUnavailable is its maxUnavailable.
	largeGroups, largeSize, largeUnavailable = 200, 8, 20
)

// storm is a fleet whose drivers may change.
type storm struct {
	*bench

	pods   *pods
	driver atomic.Pointer[driver]
}

// stormTimes is how many times as many workloads are released with a limit as without.
const stormTimes = 4

// measureStorm releases many workloads at once, in place, beside LeaderWorkerSet's own rolling updates of as many of the same fleet,
// and one large workload.
func (b *bench) measureStorm(ctx context.Context, r *report) error {
	n := max(b.releasing/b.divide, 1)
	total := max(b.storm/b.divide, n*(stormTimes+1))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p, err := watchPods(ctx, b.kube)
	if err != nil {
		return err
	}
	s := &storm{bench: b, pods: p}
	defer func() {
		if last := s.driver.Load(); last != nil {
			last.stop()
		}
	}()
	fleet := make([]*workload, total)
	for i := range fleet {
		fleet[i] = &workload{name: "set-" + strconv.Itoa(i), version: 1}
	}
	b.logf("creating %d LeaderWorkerSets", total)
	if _, err = s.timed(ctx, fleet, func(ctx context.Context, w *workload) error {
		_, err := b.sets.LeaderworkersetV1().LeaderWorkerSets(namespace).Create(ctx, w.object(groups, groupSize), metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	t := r.table(fmt.Sprintf("STORM: %d LeaderWorkerSets of %d groups of %d, released in place, in one batch", total, groups, groupSize), "natively", "by the driver")
	native, err := s.timed(ctx, fleet[:n], b.change)
	if err != nil {
		return err
	}
	b.logf("native: %.1f s", native)
	if err := s.throughDriver(ctx, t, native, fleet[n:n*(stormTimes+1)], n); err != nil {
		return err
	}
	return s.large(ctx, t)
}

// throughDriver releases workloads with one driver without a limit, and then more of them with a driver that has one.
func (s *storm) throughDriver(ctx context.Context, t *table, native float64, fleet []*workload, n int) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	if err := s.each(ctx, fleet, func(ctx context.Context, w *workload) error {
		_, err := s.driver.Load().Adopt(ctx, &pb.AdoptRequest{Workload: w.ref()})
		return err
	}); err != nil {
		return err
	}
	s.logf("%d releases at once", n)
	before, err := s.driver.Load().busy()
	if err != nil {
		return err
	}
	begin := time.Now()
	took, err := s.timed(ctx, fleet[:n], s.release)
	if err != nil {
		return err
	}
	after, err := s.driver.Load().busy()
	if err != nil {
		return err
	}
	all, err := s.requests(begin)
	if err != nil {
		return err
	}
	requests := len(slices.DeleteFunc(all, func(e audit.Event) bool { return e.Verb == "watch" }))
	m, err := s.driver.Load().memory()
	if err != nil {
		return err
	}
	t.row(fmt.Sprintf("%d at once", n), "%.1f s|%.1f s (%.2fx), %d requests, %.2f s of CPU, peak %.0f MB", native, took, took/native, requests, seconds(after-before), m.peak)
	limited, err := s.limited(ctx, fleet, n)
	t.row(fmt.Sprintf("%d at once, at most %d groups in flight, driver killed in the middle", len(fleet), n), "|%.1f s (%.2fx of %d times the first)",
		limited, limited/native/stormTimes, stormTimes)
	return err
}

// limited releases more workloads than LWS could update at once, with a limit, and restarts the driver in the middle.
func (s *storm) limited(ctx context.Context, fleet []*workload, most int) (float64, error) {
	s.logf("%d releases with at most %d groups in flight, and a driver that is killed", len(fleet), most)
	limit := []string{"--max-groups-in-flight", strconv.Itoa(most)}
	if err := s.start(ctx, limit...); err != nil {
		return 0, err
	}
	var ended atomic.Int64
	return s.timed(ctx, fleet, func(ctx context.Context, w *workload) error {
		if err := s.release(ctx, w); err != nil {
			return err
		}
		if ended.Add(1) != int64(len(fleet)/2) {
			return nil
		}
		s.driver.Load().End(syscall.SIGKILL, time.Minute)
		return s.start(ctx, limit...)
	})
}

// large updates one large workload natively, and then through the driver.
func (s *storm) large(ctx context.Context, t *table) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	groups, w := largeGroups/s.divide, &workload{name: "large", version: 1}
	object := w.object(groups, largeSize)
	object.Spec.RolloutStrategy.RollingUpdateConfiguration.MaxUnavailable = intstr.FromInt32(largeUnavailable)
	s.logf("creating one LeaderWorkerSet of %d groups of %d", groups, largeSize)
	if _, err := s.timedOf(ctx, []*workload{w}, groups*largeSize, func(ctx context.Context, _ *workload) error {
		_, err := s.sets.LeaderworkersetV1().LeaderWorkerSets(namespace).Create(ctx, object, metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	s.logf("updating it natively, and through the driver")
	native, err := s.timedOf(ctx, []*workload{w}, groups*largeSize, s.change)
	if err != nil {
		return err
	}
	if _, err := s.driver.Load().Adopt(ctx, &pb.AdoptRequest{Workload: w.ref()}); err != nil {
		return err
	}
	took, err := s.timedOf(ctx, []*workload{w}, groups*largeSize, s.release)
	t.row(fmt.Sprintf("one of %d groups of %d, maxUnavailable %d", groups, largeSize, largeUnavailable), "%.1f s|%.1f s (%.2fx)", native, took, took/native)
	return err
}

// start starts a driver in place of the last.
func (s *storm) start(ctx context.Context, args ...string) error {
	if last := s.driver.Load(); last != nil {
		last.stop()
	}
	d, err := s.startDriver(ctx, args...)
	if err == nil {
		s.driver.Store(d)
	}
	return err
}

// release releases a workload in place, in one batch.
func (s *storm) release(ctx context.Context, w *workload) error {
	policy := &pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: []string{"100%"}}
	return s.bench.release(ctx, s.driver.Load, w, policy, stormPatience)
}

// timed does something with each workload at once, and returns the time until all their groups are updated and ready.
func (s *storm) timed(ctx context.Context, all []*workload, do func(context.Context, *workload) error) (float64, error) {
	return s.timedOf(ctx, all, groups*groupSize, do)
}

func (s *storm) timedOf(ctx context.Context, all []*workload, pods int, do func(context.Context, *workload) error) (float64, error) {
	begin := time.Now()
	if err := s.each(ctx, all, do); err != nil {
		return 0, err
	}
	err := s.settled(ctx, all, pods)
	return seconds(time.Since(begin)), err
}

// each does something with all workloads at once. A release waits in its call, so all have to run.
func (s *storm) each(ctx context.Context, all []*workload, do func(context.Context, *workload) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, w := range all {
		g.Go(func() error { return do(ctx, w) })
	}
	return g.Wait()
}

// settled waits until all pods of workloads are ready and have their images.
func (s *storm) settled(ctx context.Context, all []*workload, pods int) error {
	images := make(map[string]string, len(all))
	for _, w := range all {
		images[w.name] = w.image()
	}
	_, err := s.pods.within(ctx, stormPatience, fmt.Sprintf("%d workloads are updated", len(all)), func() bool { return s.pods.serveAll(images, pods) })
	return err
}
