// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"k8s.io/apimachinery/pkg/types"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	scaleName = "large"
	scaleSize = 8
	scaleID   = "scale"
	mb        = 1 << 20
)

// measureScale has LWS and Kubernetes create one group of each side of a canary, stops every controller, and multiplies these
// objects: a real API server with real objects of a release in progress, on an otherwise idle machine. It is last, since no
// controller runs in this cluster afterwards.
func (b *bench) measureScale(ctx context.Context, r *report) error {
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	p, err := watchPods(watching, b.kube)
	if err != nil {
		return err
	}
	small, canary, err := b.beginLarge(ctx, p)
	if err != nil {
		return err
	}
	cancel()
	groups, err := b.seed(ctx, canary)
	if err != nil {
		return err
	}
	d, err := b.startDriver(ctx)
	if err != nil {
		return err
	}
	defer d.stop()
	calls, err := b.measureCalls(ctx, d, groups)
	if err != nil {
		return err
	}
	live, err := liveHeap(ctx, d, scaleName)
	if err != nil {
		return err
	}
	m, err := d.memory()
	if err != nil {
		return err
	}
	d.stop()
	pods := groups * scaleSize
	t := r.table(fmt.Sprintf("SCALE: %d groups, %d pods", groups, pods), "measured")
	t.row("exec until SERVING", "%.2f s", seconds(d.serves))
	t.row("live heap", "%.0f MB (%.0f MB without them: about %.1f kB per pod)", live, small, (live-small)*mb/float64(pods)/1000)
	t.row("resident memory", "%.0f MB (peak %.0f MB)", m.resident, m.peak)
	r.aim(live < 100, fmt.Sprintf("live heap at %d pods", pods), "below 100 MB", "%.0f MB", live)
	r.aim(m.resident < 100, fmt.Sprintf("resident memory at %d pods", pods), "below 100 MB", "%.0f MB", m.resident)
	worst := map[bool]float64{}
	t = r.table("CalculateBatchContext over the socket", "p50", "p99", "CPU of the process, mean")
	for _, c := range calls {
		t.row(fmt.Sprintf("%s, %.0f pod changes/s", c.content(), c.churn), "%.2f ms|%.2f ms|%.2f ms", c.p50, c.p99, c.cpu)
		worst[c.groups] = max(worst[c.groups], c.p99)
	}
	for _, rows := range []bool{false, true} {
		r.aim(worst[rows] < 1, "CalculateBatchContext p99, "+call{groups: rows}.content(), "below 1 ms", "%.2f ms", worst[rows])
	}
	return nil
}

// call are calls of CalculateBatchContext, in milliseconds. p50 and p99 are on the clock, which a busy machine stretches.
type call struct {
	groups        bool
	churn         float64 // pod changes per second
	p50, p99, cpu float64
}

func (c call) content() string {
	if c.groups {
		return "with groups"
	}
	return "counts only"
}

// beginLarge begins the release of a workload with one group. It returns the driver's live heap with these few pods, in MB, and
// the canary's name.
func (b *bench) beginLarge(ctx context.Context, p *pods) (liveMB float64, canary string, err error) {
	d, err := b.startDriver(ctx)
	if err != nil {
		return 0, "", err
	}
	defer d.stop()
	w := &workload{name: scaleName}
	if err := b.deploy(ctx, p, w, 1, scaleSize); err != nil {
		return 0, "", err
	}
	if _, err := d.Adopt(ctx, &pb.AdoptRequest{Workload: w.ref()}); err != nil {
		return 0, "", err
	}
	if err := b.change(ctx, w); err != nil {
		return 0, "", err
	}
	policy := &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"25%", "100%"}}
	long := durationpb.New(patience)
	if _, err := d.Initialize(ctx, &pb.InitializeRequest{Workload: w.ref(), ReleaseId: scaleID, Policy: policy, Wait: long}); err != nil {
		return 0, "", err
	}
	answer, err := d.UpgradeBatch(ctx, &pb.UpgradeBatchRequest{
		Workload: w.ref(), ReleaseId: scaleID, Target: &pb.UpgradeBatchRequest_Batch{Batch: 0}, Wait: long,
	})
	if err != nil {
		return 0, "", err
	}
	if err := expect(answer.GetContext(), pb.State_STATE_READY); err != nil {
		return 0, "", err
	}
	live, err := liveHeap(ctx, d, scaleName)
	return live, answer.GetContext().GetCanaryWorkload(), err
}

// seed stops the controllers and multiplies the groups: four fifths stable, one fifth, a quarter of those, canary.
func (b *bench) seed(ctx context.Context, canary string) (groups int, err error) {
	if err := b.stopControllers(ctx); err != nil {
		return 0, err
	}
	stable := b.groups * 4 / 5
	for name, replicas := range map[string]int{scaleName: stable, canary: (stable + 3) / 4} {
		patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas)
		_, err := b.sets.LeaderworkersetV1().LeaderWorkerSets(namespace).
			Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		if err != nil {
			return 0, fmt.Errorf("scale LeaderWorkerSet %s: %w", name, err)
		}
		if err := b.multiply(ctx, name, replicas); err != nil {
			return 0, err
		}
		groups += replicas
	}
	return groups, nil
}

// removeWebhooks removes LWS's webhooks, since its manager is stopped.
func (b *bench) removeWebhooks(ctx context.Context) error {
	all := b.kube.AdmissionregistrationV1()
	if err := all.MutatingWebhookConfigurations().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return fmt.Errorf("delete webhooks: %w", err)
	}
	if err := all.ValidatingWebhookConfigurations().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return fmt.Errorf("delete webhooks: %w", err)
	}
	return nil
}

// measureCalls calls at rest, and again while pods change.
func (b *bench) measureCalls(ctx context.Context, d *driver, groups int) ([]call, error) {
	var all []call
	measure := func(rate float64) error {
		for _, rows := range []bool{false, true} {
			f, err := b.repeat(ctx, d, rows, groups)
			if err != nil {
				return err
			}
			f.churn = rate
			all = append(all, f)
		}
		return nil
	}
	if err := measure(0); err != nil {
		return nil, err
	}
	stop := b.startChurn(ctx)
	err := measure(float64(b.churn))
	rate, churnErr := stop()
	for i := range all {
		if all[i].churn > 0 {
			all[i].churn = rate
		}
	}
	return all, errors.Join(err, churnErr)
}

// repeat calls repeatedly, with a millisecond between two calls so that changes are processed in between.
func (b *bench) repeat(ctx context.Context, d *driver, rows bool, groups int) (call, error) {
	took := make([]time.Duration, 0, b.calls)
	request := &pb.CalculateBatchContextRequest{
		Workload: &pb.WorkloadRef{Namespace: namespace, Name: scaleName}, ReleaseId: scaleID, IncludeGroups: rows,
	}
	busy, err := d.busy()
	if err != nil {
		return call{}, err
	}
	for range b.calls {
		begin := time.Now()
		answer, err := d.CalculateBatchContext(ctx, request)
		if err != nil {
			return call{}, err
		}
		took = append(took, time.Since(begin))
		c := answer.GetContext()
		if c.GetTotal() != int32(groups) || c.GetState() != pb.State_STATE_READY {
			return call{}, fmt.Errorf("%d groups and state %s, want %d and READY: %s", c.GetTotal(), c.GetState(), groups, c.GetMessage())
		}
		time.Sleep(time.Millisecond)
	}
	after, err := d.busy()
	if err != nil {
		return call{}, err
	}
	slices.Sort(took)
	at := func(share float64) float64 { return 1000 * seconds(took[int(share*float64(len(took)-1))]) }
	return call{
		groups: rows, p50: at(0.50), p99: at(0.99), cpu: 1000 * seconds(after-busy) / float64(b.calls),
	}, nil
}

// liveHeap calls for a workload until the driver has collected garbage twice, and returns the second live heap, in MB.
func liveHeap(ctx context.Context, d *driver, name string) (float64, error) {
	before, _ := d.collections()
	for {
		if now, live := d.collections(); now >= before+2 {
			return float64(live) / mb, nil
		}
		if err := d.read(ctx, name); err != nil {
			return 0, err
		}
	}
}
