// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// batches of the measured canary.
var batches = []string{"25%", "50%", "75%", "100%"}

// startups of the measured groups.
var startups = []time.Duration{0, 2 * time.Second}

// idle is how long the driver is watched without changes.
const idle = 5 * time.Second

// measureRelease alternates between a canary of one workload and a native rolling update of its twin.
func (b *bench) measureRelease(ctx context.Context, r *report) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p, err := watchPods(ctx, b.kube)
	if err != nil {
		return err
	}
	d, err := b.startDriver(ctx)
	if err != nil {
		return err
	}
	defer d.stop()
	var windows []window
	for _, startup := range startups {
		used, err := b.sideBySide(ctx, r, d, p, startup)
		if err != nil {
			return err
		}
		windows = append(windows, used...)
	}
	still := window{from: time.Now()}
	if err := sleep(ctx, idle); err != nil {
		return err
	}
	still.to = time.Now()
	return b.reportRequests(r, d.servingAt, windows, still)
}

// sideBySide measures one start-up time, and returns when each canary took place. The first pair is a warm-up and does not count.
func (b *bench) sideBySide(ctx context.Context, r *report, d *driver, p *pods, startup time.Duration) (windows []window, err error) {
	reps := b.reps
	if startup > 0 {
		reps = max(1, b.reps/3) // known times vary little
	}
	canary := &workload{name: fmt.Sprintf("canary-%d", startup.Milliseconds()), startup: startup}
	native := &workload{name: fmt.Sprintf("native-%d", startup.Milliseconds()), startup: startup}
	for _, w := range []*workload{canary, native} {
		if err := b.deploy(ctx, p, w, groups, groupSize); err != nil {
			return nil, err
		}
	}
	if _, err := d.Adopt(ctx, &pb.AdoptRequest{Workload: canary.ref()}); err != nil {
		return nil, err
	}
	var canaries, natives []time.Duration
	for rep := range reps + 1 {
		one, window, err := b.canary(ctx, d, canary)
		if err != nil {
			return nil, fmt.Errorf("canary of %s: %w", canary.name, err)
		}
		other, err := b.roll(ctx, p, native)
		if err != nil {
			return nil, fmt.Errorf("rolling update of %s: %w", native.name, err)
		}
		b.logf("start-up %s: canary %.2f s, native %.2f s", startup, one.Seconds(), other.Seconds())
		if rep > 0 {
			canaries, natives, windows = append(canaries, one), append(natives, other), append(windows, window)
		}
	}
	reportReleases(r, canaries, natives, startup)
	return windows, nil
}

// reportReleases compares canaries with native rolling updates.
func reportReleases(r *report, canaries, natives []time.Duration, startup time.Duration) {
	canary, native := spreadOf(canaries), spreadOf(natives)
	ratio := canary.median.Seconds() / native.median.Seconds()
	// LWS replaces maxUnavailable groups at a time. A canary's batches are sequential before that.
	nativePath := startup * groups / maxUnavailable
	canaryPath := startup*time.Duration(len(batches)) + nativePath
	t := r.table(fmt.Sprintf("RELEASE of %d groups of %d, start-up %s, %d times", groups, groupSize, startup, len(canaries)), "median (extremes)", "critical path")
	t.row("canary "+strings.Join(batches, " ")+", promoted", "%s|%s", canary, canaryPath)
	t.row("native rolling update", "%s|%s", native, nativePath)
	t.row("ratio", "%.2fx", ratio)
	if startup == 0 {
		r.aim(ratio <= 2, "canary beside native, instant pods", "at most 2x", "%.2fx", ratio)
	}
}

// roll is LWS's own rolling update.
func (b *bench) roll(ctx context.Context, p *pods, w *workload) (time.Duration, error) {
	begin := time.Now()
	if err := b.change(ctx, w); err != nil {
		return 0, err
	}
	end, err := p.until(ctx, "all groups are updated", func() bool { return p.serves(w.name, w.image(), groups*groupSize) })
	if err != nil {
		return 0, err
	}
	return end.Sub(begin), b.rest(ctx, w)
}

// canary runs one canary through all batches and promotes it, as a host with blocking calls does.
func (b *bench) canary(ctx context.Context, d *driver, w *workload) (took time.Duration, used window, err error) {
	used.from = time.Now()
	policy := &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: batches}
	if err := b.release(ctx, func() *driver { return d }, w, policy, patience); err != nil {
		return 0, used, err
	}
	took = time.Since(used.from)
	err = b.rest(ctx, w)
	used.to = time.Now()
	return took, used, err
}

// release changes the image of a workload, releases it through all batches and promotes it. A call that a dying driver does not answer
// is repeated.
func (b *bench) release(ctx context.Context, of func() *driver, w *workload, policy *pb.ReleasePolicy, limit time.Duration) error {
	if err := b.change(ctx, w); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	id, long := fmt.Sprintf("v%d", w.version), durationpb.New(limit)
	type answer interface{ GetContext() *pb.BatchContext }
	until := func(want pb.State, call func(d *driver) (answer, error)) error {
		for {
			a, err := call(of())
			switch c := a.GetContext(); {
			case err == nil && c.GetState() == want:
				return nil
			case err == nil && c.GetState() == pb.State_STATE_FAILED:
				return fmt.Errorf("%s: %w", w.name, expect(c, want))
			case err != nil && status.Code(err) != codes.Unavailable && status.Code(err) != codes.Canceled:
				return fmt.Errorf("%s: %w", w.name, err)
			}
			if err := sleep(ctx, 50*time.Millisecond); err != nil {
				return fmt.Errorf("%s: wait for %s: %w", w.name, want, err)
			}
		}
	}
	if err := until(pb.State_STATE_HOLDING, func(d *driver) (answer, error) {
		return d.Initialize(ctx, &pb.InitializeRequest{Workload: w.ref(), ReleaseId: id, Wait: long, Policy: policy})
	}); err != nil {
		return err
	}
	for i := range policy.GetBatches() {
		if err := until(pb.State_STATE_READY, func(d *driver) (answer, error) {
			return d.UpgradeBatch(ctx, &pb.UpgradeBatchRequest{
				Workload: w.ref(), ReleaseId: id, Wait: long, Target: &pb.UpgradeBatchRequest_Batch{Batch: int32(i)},
			})
		}); err != nil {
			return err
		}
	}
	return until(pb.State_STATE_COMPLETED, func(d *driver) (answer, error) {
		return d.Finalize(ctx, &pb.FinalizeRequest{Workload: w.ref(), ReleaseId: id, Wait: long, Intent: pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE})
	})
}

func expect(c *pb.BatchContext, want pb.State) error {
	if c.GetState() != want {
		return fmt.Errorf("state is %s (%s: %s), want %s", c.GetState(), c.GetReason(), c.GetMessage(), want)
	}
	return nil
}
