// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package bench

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/audit"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// batches of the measured canary.
var batches = []string{"25%", "50%", "75%", "100%"}

// idle is how long the driver is watched without changes.
const idle = 5 * time.Second

// window is a span of time.
type window struct{ from, to time.Time }

func (w window) holds(t time.Time) bool { return !t.Before(w.from) && t.Before(w.to) }

// measureRelease alternates between a canary of one workload and a native rolling update of its twin.
func (b *bench) measureRelease() {
	p, _ := b.watchPods()
	s := b.serve()
	var windows []window
	for _, startup := range []time.Duration{0, 2 * time.Second} {
		windows = append(windows, b.sideBySide(s, p, startup)...)
	}
	still := window{from: time.Now()}
	b.must(sleep(b.ctx, idle))
	still.to = time.Now()
	b.reportRequests(s.servingAt, windows, still)
}

// sideBySide measures one start-up time, and returns when each canary took place. The first pair is a warm-up and does not count.
func (b *bench) sideBySide(s *server, p *pods, startup time.Duration) (windows []window) {
	reps := *reps
	if startup > 0 {
		reps = max(1, reps/3) // known times vary little
	}
	canary := &workload{name: fmt.Sprintf("canary-%d", startup.Milliseconds()), startup: startup}
	native := &workload{name: fmt.Sprintf("native-%d", startup.Milliseconds()), startup: startup}
	for _, w := range []*workload{canary, native} {
		b.deploy(p, w, groups, groupSize)
	}
	_, err := s.Adopt(b.ctx, &pb.AdoptRequest{Workload: canary.ref()})
	b.must(err)
	var canaries, natives []time.Duration
	for rep := range reps + 1 {
		one, window := b.canary(s, canary)
		other := b.roll(p, native)
		b.logf("start-up %s: canary %.2f s, native %.2f s", startup, one.Seconds(), other.Seconds())
		if rep > 0 {
			canaries, natives, windows = append(canaries, one), append(natives, other), append(windows, window)
		}
	}
	b.reportReleases(canaries, natives, startup)
	return windows
}

// reportReleases compares canaries with native rolling updates.
func (b *bench) reportReleases(canaries, natives []time.Duration, startup time.Duration) {
	canary, native := spreadOf(canaries), spreadOf(natives)
	ratio := canary.median.Seconds() / native.median.Seconds()
	// LWS replaces maxUnavailable groups at a time. A canary's batches are sequential before that.
	nativePath := startup * groups / maxUnavailable
	canaryPath := startup*time.Duration(len(batches)) + nativePath
	title := fmt.Sprintf("RELEASE of %d groups of %d, start-up %s, %d times", groups, groupSize, startup, len(canaries))
	row := b.report.table(title, "median (extremes)", "critical path")
	row("canary "+strings.Join(batches, " ")+", promoted", "%s|%s", canary, canaryPath)
	row("native rolling update", "%s|%s", native, nativePath)
	row("ratio", "%.2fx", ratio)
	if startup == 0 {
		b.report.aim(ratio <= 2, "canary beside native, instant pods", "at most 2x", "%.2fx", ratio)
	}
}

// roll is LWS's own rolling update.
func (b *bench) roll(p *pods, w *workload) time.Duration {
	begin := time.Now()
	b.must(b.change(b.ctx, w))
	end := p.until(patience, "all groups are updated", func() bool { return p.serve(groups*groupSize, w) })
	b.rest(w)
	return end.Sub(begin)
}

// canary runs one canary through all batches and promotes it, as a host with blocking calls does.
func (b *bench) canary(s *server, w *workload) (took time.Duration, used window) {
	used.from = time.Now()
	policy := &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: batches}
	b.must(b.release(b.ctx, func() *server { return s }, w, policy, patience))
	took = time.Since(used.from)
	b.rest(w)
	used.to = time.Now()
	return took, used
}

// release changes the image of a workload, releases it through all batches and promotes it. A call that a dying driver does not answer
// is repeated.
func (b *bench) release(ctx context.Context, of func() *server, w *workload, policy *pb.ReleasePolicy, limit time.Duration) error {
	if err := b.change(ctx, w); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	id, long := fmt.Sprintf("v%d", w.version), durationpb.New(limit)
	type answer interface{ GetContext() *pb.BatchContext }
	until := func(want pb.State, call func(s *server) (answer, error)) error {
		for {
			a, err := call(of())
			switch c := a.GetContext(); {
			case err == nil && c.GetState() == want:
				return nil
			case err == nil && c.GetState() == pb.State_STATE_FAILED:
				return fmt.Errorf("%s: state is FAILED (%s: %s), want %s", w.name, c.GetReason(), c.GetMessage(), want)
			case err != nil && status.Code(err) != codes.Unavailable && status.Code(err) != codes.Canceled:
				return fmt.Errorf("%s: %w", w.name, err)
			}
			if err := sleep(ctx, 50*time.Millisecond); err != nil {
				return fmt.Errorf("%s: wait for %s: %w", w.name, want, err)
			}
		}
	}
	if err := until(pb.State_STATE_HOLDING, func(s *server) (answer, error) {
		return s.Initialize(ctx, &pb.InitializeRequest{Workload: w.ref(), ReleaseId: id, Wait: long, Policy: policy})
	}); err != nil {
		return err
	}
	for i := range policy.GetBatches() {
		if err := until(pb.State_STATE_READY, func(s *server) (answer, error) {
			return s.UpgradeBatch(ctx, &pb.UpgradeBatchRequest{
				Workload: w.ref(), ReleaseId: id, Wait: long, Target: &pb.UpgradeBatchRequest_Batch{Batch: int32(i)},
			})
		}); err != nil {
			return err
		}
	}
	return until(pb.State_STATE_COMPLETED, func(s *server) (answer, error) {
		return s.Finalize(ctx, &pb.FinalizeRequest{Workload: w.ref(), ReleaseId: id, Wait: long, Intent: pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE})
	})
}

// requests returns the driver's requests since then. The API server logs before it responds, so none is missing.
func (b *bench) requests(since time.Time) []audit.Event {
	all, err := audit.ReadFile(b.cluster.AuditLog(), driver.User)
	b.must(err)
	return slices.DeleteFunc(all, func(r audit.Event) bool { return r.User.Username != driver.User || r.ReceivedAt.Before(since) })
}

// count counts requests by the release in which they were made, and by kind. Events do not count as writes.
func count(all []audit.Event, releases []window) (writes []float64, byKind map[string]int) {
	writes, byKind = make([]float64, len(releases)), map[string]int{}
	for _, r := range all {
		i := slices.IndexFunc(releases, func(w window) bool { return w.holds(r.ReceivedAt) })
		if i < 0 || r.ObjectRef.Resource == "leases" { // who leads is asked for by the clock
			continue
		}
		kind := r.String()
		if r.ResponseStatus.Code >= http.StatusBadRequest {
			kind += fmt.Sprintf(", answered %d", r.ResponseStatus.Code)
		}
		byKind[kind]++
		if r.IsWrite() && r.ObjectRef.Resource != "events" {
			writes[i]++
		}
	}
	return writes, byKind
}

// reportRequests reports the driver's requests per release, all its reads since it served, and all its requests of an idle time.
func (b *bench) reportRequests(serving time.Time, releases []window, still window) {
	all := b.requests(serving)
	writes, byKind := count(all, releases)
	reads, inRest := 0, 0
	for _, request := range all {
		if request.IsRead() {
			reads++
			b.logf("read: %s %s", request.Verb, request.RequestURI)
		}
		if still.holds(request.ReceivedAt) {
			inRest++
		}
	}
	most := slices.Max(writes)
	row := b.report.table(fmt.Sprintf("REQUESTS of the driver, %d releases", len(releases)), "per release")
	for _, kind := range slices.Sorted(maps.Keys(byKind)) {
		row(kind, "%.1f", float64(byKind[kind])/float64(len(releases)))
	}
	row("writes, without events", "%.1f (most: %.0f)", median(writes), most)
	row("GET and LIST since it served", "%d in all", reads)
	row("any request in rest", "%d in %.0f s", inRest, still.to.Sub(still.from).Seconds())
	b.report.aim(reads == 0, "GET and LIST after start-up", "0", "%d", reads)
	b.report.aim(most <= 12, "writes per 4-batch release, worst", "at most 12", "%.0f", most)
}
