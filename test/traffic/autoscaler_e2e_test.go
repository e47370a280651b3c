// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package traffic

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/text"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/load"
	"github.com/lockstep-rollouts/lockstep/test/podserver"
	"github.com/lockstep-rollouts/lockstep/test/serving"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// autoscaled is a workload that a HorizontalPodAutoscaler scales by the requests that its leaders receive.
type autoscaled struct {
	*serving.Release

	mu   sync.Mutex
	rows []capacity
}

// capacity is what could serve at a time.
type capacity struct {
	at             time.Duration
	weight         int32 // of the canary, by the route
	replicas       int32 // of the workload's spec
	stable, canary int32 // ready groups
	load           int64 // requests a second of a stable leader, as the autoscaler sees it
}

func (c capacity) String() string {
	return fmt.Sprintf("%6.1fs  %3d %%  %2d groups in the spec  %2d stable ready  %2d canary ready  %4d requests/s per stable leader",
		c.at.Seconds(), c.weight, c.replicas, c.stable, c.canary, c.load)
}

// autoscale starts the metric, which follows the requests, one Mi of "memory" for a request per second, and creates the
// autoscaler: 120 of them per leader, no stabilization.
func autoscale(s *serving.Release, behavior string) *autoscaled {
	s.T.Helper()
	a := &autoscaled{Release: s}
	suite.ServePodMetrics(s.T, s.Cluster)
	ctx, stop := context.WithCancel(s.T.Context())
	var running sync.WaitGroup
	running.Go(func() { a.measure(ctx) })
	s.T.Cleanup(func() {
		stop()
		running.Wait()
		for _, row := range a.rows {
			s.T.Log(row)
		}
	})
	s.Apply(`
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: model}
spec:
  scaleTargetRef: {apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, name: model}
  minReplicas: 1
  maxReplicas: 8
  behavior: %s
  metrics: [{type: Resource, resource: {name: memory, target: {type: AverageValue, averageValue: 120Mi}}}]
`, behavior)
	return a
}

// measure publishes the requests per second of each stable leader over the last three seconds, and notes the capacity
// whenever it changes.
func (a *autoscaled) measure(ctx context.Context) {
	type sample struct {
		at     time.Time
		counts map[string]podserver.Count
	}
	var samples []sample
	began := time.Now()
	for ctx.Err() == nil {
		now := sample{time.Now(), a.Pods.Counts()}
		for samples = append(samples, now); now.at.Sub(samples[0].at) > 3*time.Second; {
			samples = samples[1:]
		}
		if elapsed := now.at.Sub(samples[0].at).Seconds(); elapsed > 1 {
			a.publish(ctx, func(pod string) int {
				pod = a.Namespace + "/" + pod
				return int(float64(now.counts[pod].Requests-samples[0].counts[pod].Requests) / elapsed)
			})
		}
		a.note(ctx, time.Since(began))
		select { // the metric's period
		case <-ctx.Done():
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// publish serves the metric of each stable leader that is wanted, and of no other: the controller would count it.
func (a *autoscaled) publish(ctx context.Context, of func(pod string) int) {
	w, err := a.Sets().Get(ctx, a.Name, metav1.GetOptions{})
	if err != nil {
		return // the test is over
	}
	values := map[string]int{}
	for group := range 8 {
		pod := fmt.Sprintf("model-%d", group)
		if group < int(*w.Spec.Replicas) {
			values[pod] = of(pod)
			continue
		}
		err := a.Objects(suite.PodMetrics).Delete(ctx, pod, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			a.T.Error(err)
		}
	}
	if err := suite.SetPodMetrics(ctx, a.Cluster, a.Namespace, a.Name, values); err != nil && ctx.Err() == nil {
		a.T.Error(err)
	}
}

func (a *autoscaled) note(ctx context.Context, at time.Duration) {
	r, err := a.CalculateBatchContext(ctx, &pb.CalculateBatchContextRequest{Workload: a.Ref, IncludeGroups: true})
	if err != nil {
		return // the driver is being restarted
	}
	c := r.GetContext()
	now := capacity{at: at, replicas: c.GetReplicas(), load: a.seen(ctx)}
	if c.GetTrafficBasis() == pb.TrafficBasis_TRAFFIC_BASIS_ROUTED {
		now.weight = c.GetTrafficWeight()
	}
	for _, g := range c.GetGroups() {
		switch {
		case !g.GetReady():
		case g.GetRole() == pb.GroupRole_GROUP_ROLE_CANARY:
			now.canary++
		default:
			now.stable++
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.rows); n > 0 {
		last := a.rows[n-1]
		if last.at, last.load = now.at, now.load; last == now && now.at-a.rows[n-1].at < 2*time.Second {
			return
		}
	}
	a.rows = append(a.rows, now)
}

// seen returns the metric that the autoscaler has read last.
func (a *autoscaled) seen(ctx context.Context) int64 {
	h, err := a.hpa(ctx)
	if err != nil {
		return -1
	}
	for _, m := range h.Status.CurrentMetrics {
		if m.Resource != nil && m.Resource.Current.AverageValue != nil {
			return m.Resource.Current.AverageValue.Value() >> 20
		}
	}
	return -1
}

func (a *autoscaled) hpa(ctx context.Context) (*autoscalingv2.HorizontalPodAutoscaler, error) {
	return a.Kube.AutoscalingV2().HorizontalPodAutoscalers(a.Namespace).Get(ctx, "model", metav1.GetOptions{})
}

// sees waits until the autoscaler has read a metric between two values.
func (a *autoscaled) sees(least, most int64) {
	a.T.Helper()
	a.Eventually(fmt.Sprintf("the autoscaler sees %d to %d requests/s", least, most), func(ctx context.Context) error {
		if now := a.seen(ctx); now < least || now > most {
			return fmt.Errorf("it sees %d", now)
		}
		return nil
	})
}

// mustKeep fails the test if the workload had fewer groups than this at any time, or a canary with requests fewer than
// its batch.
func (a *autoscaled) mustKeep(groups int32) {
	a.T.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.rows {
		if c.replicas < groups || c.weight == 100 && c.canary < groups {
			a.T.Errorf("capacity was lost: %s", c)
		}
	}
}

const noStabilization = `{scaleDown: {stabilizationWindowSeconds: 0, policies: [{type: Percent, value: 100, periodSeconds: 1}]}}`

// All requests move to the canary, and the autoscaler sees idle stable leaders. The release keeps it from removing them:
// after the promotion, or an abort, as many groups serve as before.
//
// Proves (test, promote): Safety rule 4: an autoscaler removes no groups whose load a release moved, and is restored.
// Proves: Safety rule 4, after an abort.
func TestTrafficAutoscaledCanary(t *testing.T) {
	for name, end := range map[string]pb.FinalizeIntent{
		"promote": pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE, "abort": pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK,
	} {
		t.Run(name, func(t *testing.T) {
			s := serving.Serve(t)
			g := s.Load(load.Options{Rate: 400, LongEvery: 100, LongFor: serving.Longest})
			g.Begin(load.Phase{Name: "stable alone", Want: load.Shares{"model": 100}})
			s.Await(g, 2000) // the load is steady
			a := autoscale(s, noStabilization)
			a.sees(85, 119)
			before, err := a.hpa(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			canary := a.BeginRelease(serving.ByRoute())
			a.Upgrade(1)
			g.Begin(load.Phase{Name: "50 %", Want: load.Shares{"model": 50, canary: 50}})
			a.Weight(50)
			a.sees(20, 70)
			g.Begin(load.Phase{Name: "100 %", Want: load.Shares{canary: 100}})
			a.Upgrade(2)
			a.Weight(100)
			a.sees(0, 1)
			a.Await(g, 1000)
			g.Begin(load.Phase{Name: "ended", Want: load.Shares{"model": 100}})
			a.End(end)
			a.sees(85, 119)
			a.Await(g, 1000)
			a.mustKeep(4)
			after, err := a.hpa(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			// Without load it would be right to remove groups, and cut the last requests.
			suite.Delete(t, a.Kube.AutoscalingV2().HorizontalPodAutoscalers(a.Namespace), "model")
			a.Passes(g)
			a.MustBeRestored()
			if text.JSON(after.Spec) != text.JSON(before.Spec) || len(after.Annotations) != len(before.Annotations) {
				t.Errorf("the autoscaler was not restored:\n%s\n%s", text.JSON(before), text.JSON(after))
			}
		})
	}
}
