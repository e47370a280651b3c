// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/grouptags"
)

// The duration of a step once its last group is ready: as shipped, and with steps that return at once and are called again by
// Argo, as for a plugin that does not wait. Both at the same time, on the same controller.
//
// Proves: Argo: idle costs no request; a driver apart; handover; latency.
func TestStepLatency(t *testing.T) {
	batches := step("upgrade: 1") + step("upgrade: 2") + step("upgrade: 3") + step("upgrade: 4") + step("promote: true")
	// Each group has its own start-up time, so that readiness does not coincide with Argo's calls.
	start := podsWith(cluster.AnnotationStartup, "3300ms")
	waiting := newRelease(t, batches, start)
	naive := newRelease(t, batches, start, withConfig("wait: 0s"))
	figures := map[string][]time.Duration{}
	var mu sync.Mutex
	var done sync.WaitGroup
	for label, e := range map[string]*env{"waits in the step": waiting, "plain requeue": naive} {
		watcher := e.stopwatch()
		e.edit("v2")
		done.Go(func() {
			took := watcher(4)
			mu.Lock()
			defer mu.Unlock()
			figures[label] = took
		})
	}
	done.Wait()
	for _, e := range []*env{waiting, naive} {
		e.mustRest("v2")
	}
	var lines []string
	for _, label := range []string{"waits in the step", "plain requeue"} {
		lines = append(lines, fmt.Sprintf("%-18s median %6.2f s, all %v", label, median(figures[label]).Seconds(), rounded(figures[label])))
	}
	t.Logf("last group ready to step complete:\n%s\nratio %.0f", strings.Join(lines, "\n"),
		median(figures["plain requeue"]).Seconds()/median(figures["waits in the step"]).Seconds())
}

// stopwatch returns a function that waits for the first steps and returns, for each, the time from its last group's
// readiness to its end.
func (e *env) stopwatch() func(steps int) []time.Duration {
	e.t.Helper()
	pods, err := e.kube.CoreV1().Pods(e.namespace).Watch(e.t.Context(), metav1.ListOptions{LabelSelector: lws.SetNameLabelKey})
	if err != nil {
		e.t.Fatal(err)
	}
	releases, err := e.dynamic.Resource(rollouts).Namespace(e.namespace).Watch(e.t.Context(), metav1.ListOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { pods.Stop(); releases.Stop() })
	return func(steps int) []time.Duration {
		var last time.Time
		known, took := map[string]bool{}, []time.Duration{}
		for len(took) < steps {
			select {
			case <-time.After(await.Patience):
				e.t.Errorf("%d of %d steps are done", len(took), steps)
				return took
			case event := <-pods.ResultChan():
				p, ok := event.Object.(*corev1.Pod)
				if ok && p.Labels[lws.SetNameLabelKey] != name && grouptags.Ready(p) && !known[p.Name] {
					known[p.Name], last = true, time.Now()
				}
			case event := <-releases.ResultChan():
				object, ok := event.Object.(*unstructured.Unstructured)
				if !ok {
					continue
				}
				var r v1alpha1.Rollout
				if runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &r) != nil {
					continue
				}
				if ran(&r, int32(len(took))).Phase == v1alpha1.StepPluginPhaseSuccessful && !last.IsZero() {
					took = append(took, time.Since(last))
				}
			}
		}
		return took
	}
}

func median(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(all))[len(all)/2]
}

func rounded(all []time.Duration) []time.Duration {
	out := make([]time.Duration, len(all))
	for i, d := range all {
		out[i] = d.Round(10 * time.Millisecond)
	}
	return out
}
