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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

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
