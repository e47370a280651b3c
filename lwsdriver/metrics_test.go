// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// A scrape has the release that CalculateBatchContext returns, and nothing of a workload that is no longer adopted.
func TestReleaseMetrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	b := newRoutedBedWith(t, options{registry: registry}, lwstest.RoutedPhase(t, record.Progressing, nil), 0).synced()
	c, _, err := b.contextOf(lwstest.VLLM, false)
	if err != nil {
		t.Fatal(err)
	}
	got := scrape(t, registry)
	want := map[string]float64{
		"lockstep_workload_replicas":               float64(c.GetReplicas()),
		"lockstep_workload_ready_groups":           float64(c.GetStableReady() + c.GetUpdatedReady()),
		"lockstep_release_batches":                 float64(c.GetBatches()),
		"lockstep_release_planned_groups":          float64(c.GetPlanned()),
		"lockstep_release_weight_ratio":            float64(c.GetTrafficWeight()) / 100,
		"lockstep_release_requested_weight_ratio":  float64(c.GetRequestedWeight()) / 100,
		"lockstep_release_start_timestamp_seconds": float64(c.GetStartTime().GetSeconds()),
		"lockstep_release_state/" + c.GetReason():  1,
	}
	if want["lockstep_workload_replicas"] == 0 || want["lockstep_release_batches"] == 0 {
		t.Fatalf("no release: %v", c)
	}
	for name := range want {
		if _, ok := got[name]; !ok {
			t.Errorf("no metric %s; there are %v", name, maps.Keys(got))
		}
	}
	maps.DeleteFunc(got, func(name string, _ float64) bool { _, ok := want[name]; return !ok })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-context +scrape:\n%s", diff)
	}
	free := b.engine.Observer.Caches.Workload(lwstest.VLLM).DeepCopy()
	free.Annotations = nil
	b.cache(free)
	if left := scrape(t, registry); len(left) > 0 {
		t.Errorf("a workload that is not adopted has %v", left)
	}
}

// scrape returns the metrics of default/vllm by their names, and by their reasons.
func scrape(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			if labels["namespace"] != lwstest.VLLM.Namespace || labels["workload"] != lwstest.VLLM.Name {
				continue
			}
			name := family.GetName()
			if reason, ok := labels["reason"]; ok {
				name += "/" + reason
			}
			values[name] = metric.GetGauge().GetValue()
		}
	}
	return values
}
