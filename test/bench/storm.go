// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	// stormPatience bounds how long many releases may take.
	stormPatience = 15 * time.Minute
	// largeGroups and largeSize are those of the one large workload, and largeUnavailable is its maxUnavailable.
	largeGroups, largeSize, largeUnavailable = 200, 8, 20
)

// stormFigures are about many releases at once, in place, beside LeaderWorkerSet's own rolling updates of as many workloads of the
// same fleet, and about one large workload.
type stormFigures struct {
	Workloads int `json:"workloads"`
	Pods      int `json:"pods"`
	// Created is how long LWS took to create them, and Adopted how long the driver took to adopt those that it releases.
	Created float64 `json:"created"`
	Adopted float64 `json:"adopted"`
	// Releasing is how many are updated at once. Native and Driver are the times until all groups are updated and ready.
	Releasing int     `json:"releasing"`
	Native    float64 `json:"native"`
	Driver    float64 `json:"driver"`
	// Requests are the driver's, without watches, and CPU its time, for all of these releases.
	Requests int     `json:"requests"`
	CPU      float64 `json:"cpu"`
	PeakMB   float64 `json:"peakMB"`
	// Limited is the time of so many times as many releases, with a limit of groups in flight of Releasing, and with a driver that is
	// killed in the middle and restarted.
	Times   int     `json:"times"`
	Limited float64 `json:"limited"`
	// Natively are updates by LWS alone of twice as many workloads each, up to the first that does not settle in stormPatience.
	Natively []nativeUpdates `json:"natively"`
	// LargeNative and LargeDriver are about the large workload.
	LargeNative float64 `json:"largeNative"`
	LargeDriver float64 `json:"largeDriver"`
}

// nativeUpdates are updates by LWS alone of so many workloads at once.
type nativeUpdates struct {
	AtOnce  int     `json:"atOnce"`
	Seconds float64 `json:"seconds"`
	Settled bool    `json:"settled"`
}

// storm is a fleet whose drivers may change.
type storm struct {
	*bench

	pods   *pods
	driver atomic.Pointer[driver]
}

// measureStorm has many workloads release at once.
func (b *bench) measureStorm(ctx context.Context, r *report) error {
	f := &stormFigures{Workloads: b.storm, Pods: b.storm * groups * groupSize, Releasing: b.releasing, Times: 4}
	if need := f.Releasing * (f.Times + 1); f.Workloads < need {
		return fmt.Errorf("-storm %d: %d workloads release at once, for which %d are needed", b.storm, b.releasing, need)
	}
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
	fleet := make([]*workload, f.Workloads)
	for i := range fleet {
		fleet[i] = &workload{name: "set-" + strconv.Itoa(i), version: 1}
	}
	b.logf("creating %d pods of %d LeaderWorkerSets", f.Pods, f.Workloads)
	if f.Created, err = s.timed(ctx, fleet, func(ctx context.Context, w *workload) error {
		_, err := b.sets.LeaderworkersetV1().LeaderWorkerSets(namespace).Create(ctx, w.object(groups, groupSize), metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	b.logf("created in %.0f s; %d native rolling updates", f.Created, f.Releasing)
	native, released := fleet[:f.Releasing], fleet[f.Releasing:]
	if f.Native, err = s.timed(ctx, native, b.change); err != nil {
		return err
	}
	b.logf("native: %.1f s", f.Native)
	if err := s.throughDriver(ctx, f, released); err != nil {
		return err
	}
	if err := s.large(ctx, f); err != nil {
		return err
	}
	if err := s.natively(ctx, f, released[f.Releasing*f.Times:]); err != nil {
		return err
	}
	r.Storm = f
	return nil
}

// natively finds how many updates at once LWS alone settles. The last ones may have left it overloaded.
func (s *storm) natively(ctx context.Context, f *stormFigures, fleet []*workload) error {
	for n := 2 * f.Releasing; n <= len(fleet); n *= 2 {
		s.logf("%d native rolling updates", n)
		took, err := s.timed(ctx, fleet[:n], s.change)
		settled := err == nil
		if !settled && (ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded)) {
			return err
		}
		f.Natively = append(f.Natively, nativeUpdates{n, took, settled})
		if s.logf("%d native: settled %t, %.1f s", n, settled, took); !settled {
			return nil
		}
		fleet = fleet[n:]
	}
	return nil
}

// throughDriver releases workloads with one driver without a limit, and then more of them with a driver that has one.
func (s *storm) throughDriver(ctx context.Context, f *stormFigures, fleet []*workload) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	begin := time.Now()
	released := fleet[:f.Releasing*f.Times]
	if err := s.each(ctx, released, func(ctx context.Context, w *workload) error {
		_, err := s.driver.Load().Adopt(ctx, &pb.AdoptRequest{Workload: w.ref()})
		return err
	}); err != nil {
		return err
	}
	f.Adopted = seconds(time.Since(begin))
	s.logf("adopted in %.1f s; %d releases at once", f.Adopted, f.Releasing)
	before, err := s.driver.Load().busy()
	if err != nil {
		return err
	}
	begin = time.Now()
	if f.Driver, err = s.timed(ctx, released[:f.Releasing], s.release); err != nil {
		return err
	}
	s.logf("by the driver: %.1f s", f.Driver)
	after, err := s.driver.Load().busy()
	if err != nil {
		return err
	}
	f.CPU = seconds(after - before)
	all, err := s.requests(begin, driverUser)
	if err != nil {
		return err
	}
	for _, request := range all {
		if request.Verb != "watch" {
			f.Requests++
		}
	}
	_, peak, _, err := s.driver.Load().memory()
	if err != nil {
		return err
	}
	f.PeakMB = float64(peak) / mb
	return s.limited(ctx, f, released)
}

// limited releases more workloads than LWS could update at once, with a limit, and restarts the driver in the middle.
func (s *storm) limited(ctx context.Context, f *stormFigures, fleet []*workload) error {
	s.logf("%d releases with at most %d groups in flight, and a driver that is killed", len(fleet), f.Releasing)
	limit := []string{"--max-groups-in-flight", strconv.Itoa(f.Releasing)}
	if err := s.start(ctx, limit...); err != nil {
		return err
	}
	var ended atomic.Int64
	var err error
	f.Limited, err = s.timed(ctx, fleet, func(ctx context.Context, w *workload) error {
		if err := s.release(ctx, w); err != nil {
			return err
		}
		if ended.Add(1) != int64(len(fleet)/2) {
			return nil
		}
		s.driver.Load().End(syscall.SIGKILL, time.Minute)
		return s.start(ctx, limit...)
	})
	s.logf("limited: %.1f s", f.Limited)
	return err
}

// large updates one large workload natively, and then through the driver.
func (s *storm) large(ctx context.Context, f *stormFigures) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	w := &workload{name: "large", version: 1}
	object := w.object(largeGroups, largeSize)
	object.Spec.RolloutStrategy.RollingUpdateConfiguration.MaxUnavailable = intstr.FromInt32(largeUnavailable)
	s.logf("creating one LeaderWorkerSet of %d groups of %d", largeGroups, largeSize)
	if _, err := s.timedOf(ctx, []*workload{w}, largeGroups*largeSize, func(ctx context.Context, _ *workload) error {
		_, err := s.sets.LeaderworkersetV1().LeaderWorkerSets(namespace).Create(ctx, object, metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	s.logf("updating it natively, and through the driver")
	var err error
	if f.LargeNative, err = s.timedOf(ctx, []*workload{w}, largeGroups*largeSize, s.change); err != nil {
		return err
	}
	s.logf("native: %.1f s", f.LargeNative)
	if _, err := s.driver.Load().Adopt(ctx, &pb.AdoptRequest{Workload: w.ref()}); err != nil {
		return err
	}
	f.LargeDriver, err = s.timedOf(ctx, []*workload{w}, largeGroups*largeSize, s.release)
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

// release changes the image of a workload and releases it in place, in one batch. A call that a dying driver does not answer is
// repeated.
func (s *storm) release(ctx context.Context, w *workload) error {
	if err := s.change(ctx, w); err != nil {
		return err
	}
	id, long := fmt.Sprintf("v%d", w.version), durationpb.New(stormPatience)
	calls := []func(d *driver) (*pb.BatchContext, error){
		func(d *driver) (*pb.BatchContext, error) {
			a, err := d.Initialize(ctx, &pb.InitializeRequest{
				Workload: w.ref(), ReleaseId: id, Wait: long, Policy: &pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: []string{"100%"}},
			})
			return a.GetContext(), err
		},
		func(d *driver) (*pb.BatchContext, error) {
			a, err := d.UpgradeBatch(ctx, &pb.UpgradeBatchRequest{Workload: w.ref(), ReleaseId: id, Wait: long, Target: &pb.UpgradeBatchRequest_Batch{}})
			return a.GetContext(), err
		},
		func(d *driver) (*pb.BatchContext, error) {
			a, err := d.Finalize(ctx, &pb.FinalizeRequest{Workload: w.ref(), ReleaseId: id, Wait: long, Intent: pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE})
			return a.GetContext(), err
		},
	}
	want := []pb.State{pb.State_STATE_HOLDING, pb.State_STATE_READY, pb.State_STATE_COMPLETED}
	for i, call := range calls {
		for {
			c, err := call(s.driver.Load())
			if err == nil && c.GetState() == want[i] {
				break
			}
			if err != nil && status.Code(err) != codes.Unavailable && status.Code(err) != codes.Canceled {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			if err == nil && c.GetState() == pb.State_STATE_FAILED {
				return fmt.Errorf("%s: %w", w.name, expect(c, want[i]))
			}
			if err := sleep(ctx, 50*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return nil
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
