// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// A scrape has the release that CalculateBatchContext returns, and nothing of a workload that is no longer adopted.
func TestReleaseMetrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	b := newRoutedFixtureWith(t, Options{Metrics: registry}, lwstest.RoutedPhase(t, record.Progressing, nil), 0).synced()
	c, s, err := b.contextOf(lwstest.VLLM, "", false)
	require.NoError(t, err)
	got := scrape(t, registry)
	want := map[string]float64{
		"lockstep_workload_replicas":               float64(c.GetReplicas()),
		"lockstep_workload_ready_groups":           float64(readyGroups(s)),
		"lockstep_workload_max_unavailable_groups": 1,
		"lockstep_workload_hold_drifted":           0,
		"lockstep_release_batches":                 float64(c.GetBatches()),
		"lockstep_release_planned_groups":          float64(c.GetPlanned()),
		"lockstep_release_weight_ratio":            float64(c.GetTrafficWeight()) / 100,
		"lockstep_release_requested_weight_ratio":  float64(c.GetRequestedWeight()) / 100,
		"lockstep_release_start_timestamp_seconds": float64(c.GetStartTime().GetSeconds()),
		"lockstep_release_state/" + c.GetReason():  1,
	}
	for _, name := range []string{"lockstep_workload_replicas", "lockstep_workload_ready_groups", "lockstep_release_batches"} {
		assert.NotZero(t, want[name], "%s is 0: %v", name, c)
	}
	for name := range want {
		_, ok := got[name]
		assert.True(t, ok, "no metric %s; there are %v", name, slices.Collect(maps.Keys(got)))
	}
	maps.DeleteFunc(got, func(name string, _ float64) bool { _, ok := want[name]; return !ok })
	assert.Empty(t, cmp.Diff(want, got), "-context +scrape")
	drifted := b.engine.Observer.Caches.Workload(lwstest.VLLM).DeepCopy()
	drifted.Spec.RolloutStrategy.RollingUpdateConfiguration.Partition = ptr.To(int32(0))
	b.cache(drifted)
	if got := scrape(t, registry)["lockstep_workload_hold_drifted"]; got != 1 {
		t.Errorf("lockstep_workload_hold_drifted is %v after another client removed the partition", got)
	}
	free := drifted.DeepCopy()
	free.Annotations = nil
	b.cache(free)
	assert.Empty(t, scrape(t, registry), "a workload that is not adopted")
}

// The capacity counts groups of both sets while a canary is promoted, when the release's own counts are of one.
func TestReadyGroupsDuringPromotion(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	b := newRoutedFixtureWith(t, Options{Metrics: registry}, lwstest.RoutedPhase(t, record.Promoting, nil), 0).synced()
	c, s, err := b.contextOf(lwstest.VLLM, "", false)
	require.NoError(t, err)
	require.False(t, len(s.Added) == 0 || readyGroups(s) == int(c.GetStableReady()+c.GetUpdatedReady()), "this promotion has no added groups: %v", c)
	if got := scrape(t, registry)["lockstep_workload_ready_groups"]; got != float64(readyGroups(s)) {
		t.Errorf("lockstep_workload_ready_groups is %v, of %d ready groups", got, readyGroups(s))
	}
}

func readyGroups(s *observe.Snapshot) int {
	n := 0
	for _, w := range slices.Concat(s.Added, []plan.Workload{s.Stable}) {
		for _, g := range w.Groups {
			if g.Ready {
				n++
			}
		}
	}
	return n
}

// A set lacks as many units as maxUnavailable of its roles allows, in each slice.
func TestSetMetrics(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ prefill, decode, slices, want int64 }{{0, 0, 1, 1}, {2, 0, 1, 2}, {0, 1, 1, 2}, {2, 1, 2, 4}} {
		b, generic := newSetFixture(t)
		object, err := generic.Tracker().Get(observe.SetsResource, "default", "llm")
		require.NoError(t, err)
		set, _ := object.(*unstructured.Unstructured)
		roles, _, _ := unstructured.NestedSlice(set.Object, "spec", "roles")
		for i, n := range []int64{tt.prefill, tt.decode} {
			role, _ := roles[i].(map[string]any)
			require.NoError(t, unstructured.SetNestedField(role, n, "spec", "rolloutStrategy", "rollingUpdateConfiguration", "maxUnavailable"))
		}
		require.NoError(t, unstructured.SetNestedField(set.Object, roles, "spec", "roles"))
		require.NoError(t, unstructured.SetNestedField(set.Object, tt.slices, "spec", "slices"))
		encoded, err := new(record.Record).Encode()
		require.NoError(t, err)
		set.SetAnnotations(map[string]string{record.RecordAnnotation: encoded})
		require.NoError(t, generic.Tracker().Update(observe.SetsResource, set, "default"))
		b.run()
		key := observe.KeyFor(observe.KindSet, "default", "llm")
		found := func(children int) {
			b.eventually("the set is found", func() bool {
				s, err := b.engine.Observe(key)
				return b.Synced() && err == nil && len(s.Children) == children
			})
		}
		found(2)
		if tt.slices > 1 {
			for _, role := range []string{"prefill", "decode"} {
				second := b.engine.Observer.Caches.Workload(observe.KeyFor("", "default", "llm-0123abcd-"+role)).DeepCopy()
				second.Name, second.Labels["disaggregatedset.x-k8s.io/slice"] = "llm-1-0123abcd-"+role, "1"
				b.cache(second)
			}
			found(4)
		}
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(releaseMetrics{b.Driver})
		got := scrapeOf(t, registry, key)
		assert.InDelta(t, tt.want, got["lockstep_workload_max_unavailable_groups"], 0, "%+v: %v", tt, got)
		for name, want := range map[string]int64{
			"workload_role_replicas/prefill": 4 * tt.slices, "workload_role_replicas/decode": 2 * tt.slices,
			"workload_role_ready_groups/prefill": 0, "release_role_planned_groups/decode": 0, "release_role_updated_ready_groups/decode": 0,
		} {
			n, ok := got["lockstep_"+name]
			assert.True(t, ok && n == float64(want), "%+v: %s is %v, want %d: %v", tt, name, n, want, got)
		}
	}
}

var update = flag.Bool("update", false, "write docs/reference-metrics.md")

// described keeps a row of the reference for each metric that is registered.
type described struct {
	prometheus.Registerer
	rows []string
}

func (d *described) MustRegister(collectors ...prometheus.Collector) {
	parts := regexp.MustCompile(`fqName: "(lockstep_\w+)", help: ("(?:[^"\\]|\\.)*"), .*variableLabels: {([^}]*)}`)
	for _, c := range collectors {
		all := make(chan *prometheus.Desc, 100)
		c.Describe(all)
		close(all)
		for desc := range all {
			if m := parts.FindStringSubmatch(desc.String()); m != nil {
				help, _ := strconv.Unquote(m[2])
				d.rows = append(d.rows, fmt.Sprintf("| `%s` | %s | %s |\n", m[1], strings.ReplaceAll(m[3], ",", ", "), help))
			}
		}
	}
}

// docs/reference-metrics.md has each metric of the driver: make generate writes it.
func TestMetricsReference(t *testing.T) {
	t.Parallel()
	var registered described
	newFixtureWith(t, Options{Metrics: &registered}, fake.NewClientset(), lwstest.NoRoutes())
	slices.Sort(registered.rows)
	want := "# Metrics\n\nReference of the driver's metrics, generated from the code. [Monitoring](monitoring.md#metrics) explains their use.\n\n" +
		"| metric | labels | help |\n| --- | --- | --- |\n" + strings.Join(registered.rows, "")
	const path = "../docs/reference-metrics.md"
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o600))
	}
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	if diff := cmp.Diff(want, string(got)); diff != "" || len(registered.rows) < 20 {
		t.Errorf("%d metrics; docs/reference-metrics.md is stale, run make generate (-driver +file):\n%s", len(registered.rows), diff)
	}
}

// The names and help texts are as Prometheus recommends.
func TestMetricsLint(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	newRoutedFixtureWith(t, Options{Metrics: registry}, lwstest.RoutedPhase(t, record.Progressing, nil), 0).synced()
	families, err := registry.Gather()
	require.NoError(t, err)
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	require.NoError(t, err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	assert.GreaterOrEqual(t, len(families), 10, "only %d metrics were checked", len(families))
}

// scrape returns the metrics of default/vllm by their names, and by their reasons or roles.
func scrape(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	return scrapeOf(t, registry, lwstest.VLLM)
}

func scrapeOf(t *testing.T, registry *prometheus.Registry, key types.NamespacedName) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			if labels["namespace"] != key.Namespace || labels["workload"] != key.Name {
				continue
			}
			name := family.GetName()
			if label := labels["reason"] + labels["role"]; label != "" {
				name += "/" + label
			}
			values[name] = metric.GetGauge().GetValue()
		}
	}
	return values
}

// readyMetric returns the value of lockstep_ready, or -1 without it.
func readyMetric(t *testing.T, registry *prometheus.Registry) float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() == "lockstep_ready" {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return -1
}
