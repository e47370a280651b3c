// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// batches of the measured canary.
var batches = []string{"25%", "50%", "75%", "100%"}

// startups of the measured groups.
var startups = []time.Duration{0, 2 * time.Second}

// idle is how long the driver is watched without changes.
const idle = 5 * time.Second

// took is the time of each phase of one canary.
type took struct {
	prepare time.Duration   // image change until Initialize says HOLDING
	batches []time.Duration // UpgradeBatch until READY
	rolling time.Duration   // Finalize until every group of the user's workload is updated and ready
	cleanUp time.Duration   // from then until COMPLETED
	total   time.Duration
	// podsGone is when, after rolling, the canary's last pod was deleted.
	podsGone time.Duration
	window   window
}

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
	var canaries []took
	var natives []time.Duration
	for rep := range reps + 1 {
		one, err := b.release(ctx, d, p, canary)
		if err != nil {
			return nil, fmt.Errorf("canary of %s: %w", canary.name, err)
		}
		other, err := b.roll(ctx, p, native)
		if err != nil {
			return nil, fmt.Errorf("rolling update of %s: %w", native.name, err)
		}
		b.logf("start-up %s: canary %.2f s, native %.2f s", startup, one.total.Seconds(), other.Seconds())
		if rep > 0 {
			canaries, natives, windows = append(canaries, one), append(natives, other), append(windows, one.window)
		}
	}
	reportReleases(r, canaries, natives, startup)
	return windows, nil
}

// reportReleases compares canaries with native rolling updates. Phases are medians of their own, so their sum is not exactly the
// total's median.
func reportReleases(r *report, canaries []took, natives []time.Duration, startup time.Duration) {
	of := func(phase func(took) time.Duration) spread {
		all := make([]time.Duration, 0, len(canaries))
		for _, t := range canaries {
			all = append(all, phase(t))
		}
		return spreadOf(all)
	}
	canary, native := of(func(t took) time.Duration { return t.total }), spreadOf(natives)
	ratio := canary.median.Seconds() / native.median.Seconds()
	// LWS replaces maxUnavailable groups at a time. A canary's batches are sequential before that.
	nativePath := startup * groups / maxUnavailable
	canaryPath := startup*time.Duration(len(batches)) + nativePath
	t := r.table(fmt.Sprintf("RELEASE of %d groups of %d, start-up %s, %d times", groups, groupSize, startup, len(canaries)), "median (extremes)", "critical path")
	t.row("canary "+strings.Join(batches, " ")+", promoted", "%s|%s", canary, canaryPath)
	t.row("native rolling update", "%s|%s", native, nativePath)
	t.row("ratio", "%.2fx", ratio)
	t.row("canary: image change until HOLDING", "%s", of(func(t took) time.Duration { return t.prepare }))
	for i, batch := range batches {
		t.row(fmt.Sprintf("canary: batch %d (%s)", i, batch), "%s", of(func(t took) time.Duration { return t.batches[i] }))
	}
	t.row("canary: Finalize until all groups rolled", "%s", of(func(t took) time.Duration { return t.rolling }))
	t.row("canary: from then until its pods are gone", "%s", of(func(t took) time.Duration { return t.podsGone }))
	t.row("canary: from then until COMPLETED", "%s", of(func(t took) time.Duration { return t.cleanUp }))
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

// release runs one canary through all batches and promotes it, as a host with blocking calls does.
func (b *bench) release(ctx context.Context, d *driver, p *pods, w *workload) (t took, err error) {
	id := fmt.Sprintf("v%d", w.version+1)
	long := durationpb.New(patience)
	begin := time.Now()
	t.window.from = begin
	if err := b.change(ctx, w); err != nil {
		return t, err
	}
	begun, err := d.Initialize(ctx, &pb.InitializeRequest{
		Workload: w.ref(), ReleaseId: id, Owner: "bench", Wait: long,
		Policy: &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: batches},
	})
	if err != nil {
		return t, err
	}
	if err := expect(begun.GetContext(), pb.State_STATE_HOLDING); err != nil {
		return t, err
	}
	lap := time.Now()
	t.prepare = lap.Sub(begin)
	for i := range batches {
		answer, err := d.UpgradeBatch(ctx, &pb.UpgradeBatchRequest{
			Workload: w.ref(), ReleaseId: id, Wait: long, Target: &pb.UpgradeBatchRequest_Batch{Batch: int32(i)},
		})
		if err != nil {
			return t, err
		}
		if err := expect(answer.GetContext(), pb.State_STATE_READY); err != nil {
			return t, err
		}
		t.batches = append(t.batches, time.Since(lap))
		lap = time.Now()
	}
	if err := b.promote(ctx, d, p, w, id, begun.GetContext().GetCanaryWorkload(), &t); err != nil {
		return t, err
	}
	t.total = time.Since(begin)
	if err := b.rest(ctx, w); err != nil {
		return t, err
	}
	t.window.to = time.Now()
	return t, nil
}

// promote ends the release and separates the native rolling update from what follows it.
func (b *bench) promote(ctx context.Context, d *driver, p *pods, w *workload, id, canary string, t *took) error {
	begin := time.Now()
	type moment struct {
		at  time.Time
		err error
	}
	rolled, gone := make(chan moment, 1), make(chan moment, 1)
	go func() {
		at, err := p.until(ctx, "all groups are promoted", func() bool { return p.serves(w.name, w.image(), groups*groupSize) })
		rolled <- moment{at, err}
		at, err = p.until(ctx, "the canary's pods are deleted", func() bool { return p.gone(canary) })
		gone <- moment{at, err}
	}()
	answer, err := d.Finalize(ctx, &pb.FinalizeRequest{
		Workload: w.ref(), ReleaseId: id, Intent: pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE, Wait: durationpb.New(patience),
	})
	if err != nil {
		return err
	}
	end := time.Now()
	if err := expect(answer.GetContext(), pb.State_STATE_COMPLETED); err != nil {
		return err
	}
	r, g := <-rolled, <-gone
	if r.err != nil || g.err != nil {
		return fmt.Errorf("watch the promotion: %w", errors.Join(r.err, g.err))
	}
	t.rolling, t.cleanUp, t.podsGone = r.at.Sub(begin), end.Sub(r.at), g.at.Sub(r.at)
	return nil
}

func expect(c *pb.BatchContext, want pb.State) error {
	if c.GetState() != want {
		return fmt.Errorf("state is %s (%s: %s), want %s", c.GetState(), c.GetReason(), c.GetMessage(), want)
	}
	return nil
}
