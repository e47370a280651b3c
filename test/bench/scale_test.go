// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

const (
	scaleName = "large"
	scaleSize = 8
	scaleID   = "scale"
	// scaleGroups is the number of groups, of which a fifth is the canary's, and churn the number of pod changes per second.
	scaleGroups, churn = 1000, 100
	// seeders is the number of concurrent creations of pods.
	seeders = 16
)

// measureScale has LWS and Kubernetes create one group of each side of a canary, stops every controller, and multiplies these
// objects: a real API server with real objects of a release in progress, on an otherwise idle machine.
func (b *bench) measureScale() {
	small, canary := b.beginLarge()
	groups := b.seed(canary)
	s := b.serve()
	calls := b.measureCalls(s, groups)
	live := b.liveHeap(s, scaleName)
	resident, peak := s.memory()
	s.stop()
	pods := groups * scaleSize
	row := b.report.table(fmt.Sprintf("SCALE: %d groups, %d pods", groups, pods), "measured")
	row("exec until SERVING", "%.2f s", s.serves.Seconds())
	row("live heap", "%.0f MB (%.0f MB without them: about %.1f kB per pod)", live, small, (live-small)*mb/float64(pods)/1000)
	row("resident memory", "%.0f MB (peak %.0f MB)", resident, peak)
	b.report.aim(live < 100, fmt.Sprintf("live heap at %d pods", pods), "below 100 MB", "%.0f MB", live)
	b.report.aim(resident < 100, fmt.Sprintf("resident memory at %d pods", pods), "below 100 MB", "%.0f MB", resident)
	worst := map[bool]float64{}
	row = b.report.table("CalculateBatchContext over the socket", "p50", "p99", "CPU of the process, mean")
	for _, c := range calls {
		row(fmt.Sprintf("%s, %.0f pod changes/s", c.content(), c.churn), "%.2f ms|%.2f ms|%.2f ms", c.p50, c.p99, c.cpu)
		worst[c.groups] = max(worst[c.groups], c.p99)
	}
	for _, rows := range []bool{false, true} {
		b.report.aim(worst[rows] < 1, "CalculateBatchContext p99, "+call{groups: rows}.content(), "below 1 ms", "%.2f ms", worst[rows])
	}
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
func (b *bench) beginLarge() (live float64, canary string) {
	p, stop := b.watchPods()
	defer stop()
	s := b.serve()
	defer s.stop()
	w := &workload{name: scaleName}
	b.deploy(p, w, 1, scaleSize)
	_, err := s.Adopt(b.ctx, &pb.AdoptRequest{Workload: w.ref()})
	b.must(err)
	b.must(b.change(b.ctx, w))
	policy := &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"25%", "100%"}}
	long := durationpb.New(patience)
	_, err = s.Initialize(b.ctx, &pb.InitializeRequest{Workload: w.ref(), ReleaseId: scaleID, Policy: policy, Wait: long})
	b.must(err)
	answer, err := s.UpgradeBatch(b.ctx, &pb.UpgradeBatchRequest{
		Workload: w.ref(), ReleaseId: scaleID, Target: &pb.UpgradeBatchRequest_Batch{Batch: 0}, Wait: long,
	})
	b.must(err)
	c := answer.GetContext()
	require.Equal(b, pb.State_STATE_READY, c.GetState(), "the first batch is %s: %s", c.GetState(), c.GetMessage())
	return b.liveHeap(s, scaleName), c.GetCanaryWorkload()
}

// seed stops the controllers and multiplies the groups: four fifths stable, one fifth, a quarter of those, canary.
func (b *bench) seed(canary string) (groups int) {
	b.stopControllers()
	stable := smaller(scaleGroups) * 4 / 5
	for name, replicas := range map[string]int{scaleName: stable, canary: (stable + 3) / 4} {
		suite.Patch(b, b.sets, name, fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
		b.multiply(name, replicas)
		groups += replicas
	}
	return groups
}

// stopControllers stops all controllers, and removes LWS's webhooks.
func (b *bench) stopControllers() {
	for _, name := range []string{cluster.LWS, cluster.ControllerManager, cluster.Scheduler, cluster.KWOK} {
		b.must(b.cluster.StopComponent(b.ctx, name))
	}
	all := b.kube.AdmissionregistrationV1()
	b.must(all.MutatingWebhookConfigurations().DeleteCollection(b.ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	b.must(all.ValidatingWebhookConfigurations().DeleteCollection(b.ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
}

// measureCalls calls at rest, and again while pods change.
func (b *bench) measureCalls(s *server, groups int) []call {
	rest := []call{b.repeat(s, false, groups), b.repeat(s, true, groups)}
	stop := b.startChurn()
	busy := []call{b.repeat(s, false, groups), b.repeat(s, true, groups)}
	rate, err := stop()
	b.must(err)
	for i := range busy {
		busy[i].churn = rate
	}
	return append(rest, busy...)
}

// repeat calls repeatedly, with a millisecond between two calls so that changes are processed in between.
func (b *bench) repeat(s *server, rows bool, groups int) call {
	calls := smaller(3000)
	took := make([]time.Duration, 0, calls)
	request := &pb.CalculateBatchContextRequest{
		Workload: &pb.WorkloadRef{Namespace: namespace, Name: scaleName}, ReleaseId: scaleID, IncludeGroups: rows,
	}
	before := s.CPU()
	for range calls {
		begin := time.Now()
		answer, err := s.CalculateBatchContext(b.ctx, request)
		took = append(took, time.Since(begin))
		b.must(err)
		c := answer.GetContext()
		require.True(b, c.GetTotal() == int32(groups) && c.GetState() == pb.State_STATE_READY,
			"%d groups and state %s, want %d and READY: %s", c.GetTotal(), c.GetState(), groups, c.GetMessage())
		time.Sleep(time.Millisecond)
	}
	cpu := s.CPU() - before
	slices.Sort(took)
	at := func(share float64) float64 { return 1000 * took[int(share*float64(len(took)-1))].Seconds() }
	return call{groups: rows, p50: at(0.50), p99: at(0.99), cpu: 1000 * cpu.Seconds() / float64(calls)}
}

// multiply copies the pods of a workload's group 0, as its controllers created them, to groups 1 to replicas-1.
func (b *bench) multiply(set string, replicas int) {
	models := suite.List(b, b.kube.CoreV1().Pods(namespace), metav1.ListOptions{LabelSelector: lws.SetNameLabelKey + "=" + set}).Items
	require.Equal(b, scaleSize, len(models), "%s has %d pods, want one group of %d", set, len(models), scaleSize)
	b.logf("making %d pods of %s", (replicas-1)*scaleSize, set)
	g, ctx := errgroup.WithContext(b.ctx)
	g.SetLimit(seeders)
	for i := 1; i < replicas; i++ {
		g.Go(func() error {
			for m := range models {
				if err := b.createPod(ctx, copyOf(&models[m], set, i), models[m].Status); err != nil {
					return err
				}
			}
			return nil
		})
	}
	b.must(g.Wait())
}

// copyOf returns the pod of group i that corresponds to one of group 0.
func copyOf(model *corev1.Pod, set string, i int) *corev1.Pod {
	rename := func(s string) string {
		if rest, ok := strings.CutPrefix(s, set+"-0"); ok {
			return set + "-" + strconv.Itoa(i) + rest
		}
		return s
	}
	pod := model.DeepCopy()
	pod.ObjectMeta = metav1.ObjectMeta{
		Name: rename(model.Name), Labels: pod.Labels, Annotations: pod.Annotations, OwnerReferences: pod.OwnerReferences,
		Finalizers: pod.Finalizers,
	}
	for _, values := range []map[string]string{pod.Labels, pod.Annotations} {
		for key, value := range values {
			values[key] = rename(value)
		}
	}
	pod.Labels[lws.GroupIndexLabelKey] = strconv.Itoa(i)
	pod.Spec.Hostname = rename(pod.Spec.Hostname)
	return pod
}

// createPod creates a pod with its status.
func (b *bench) createPod(ctx context.Context, pod *corev1.Pod, status corev1.PodStatus) error {
	made, err := b.kube.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err == nil {
		made.Status = status
		_, err = b.kube.CoreV1().Pods(namespace).UpdateStatus(ctx, made, metav1.UpdateOptions{})
	}
	return err
}

// startChurn makes pods of the stable side unready and ready again, at about the given rate, until stop is called, which returns
// the actual rate.
func (b *bench) startChurn() (stop func() (perSecond float64, err error)) {
	ctx, cancel := context.WithCancel(b.ctx)
	g := &errgroup.Group{}
	var changes atomic.Int64
	begin := time.Now()
	const changers = 4
	for range changers {
		g.Go(func() error {
			ticks := time.NewTicker(changers * time.Second / churn)
			defer ticks.Stop()
			for {
				select {
				case <-ctx.Done():
					return nil
				case <-ticks.C:
				}
				pod := fmt.Sprintf("%s-%d-%d", scaleName, rand.IntN(smaller(scaleGroups)*4/5), 1+rand.IntN(scaleSize-1))
				if err := b.setReady(ctx, pod, rand.IntN(2) == 0); err != nil && ctx.Err() == nil {
					return err
				}
				changes.Add(1)
			}
		})
	}
	return func() (float64, error) {
		cancel()
		err := g.Wait()
		return float64(changes.Load()) / time.Since(begin).Seconds(), err
	}
}

// setReady makes a pod ready or unready.
func (b *bench) setReady(ctx context.Context, pod string, ready bool) error {
	status := map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}[ready]
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":%q,"lastTransitionTime":%q}]}}`, status, time.Now().UTC().Format(time.RFC3339))
	_, err := b.kube.CoreV1().Pods(namespace).Patch(ctx, pod, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	return err
}
