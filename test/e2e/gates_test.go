// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/internal/gate"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/vllm"
)

// measured is a workload whose leaders have vLLM's metrics in a real Prometheus.
type measured struct {
	*workload

	metrics *vllm.Metrics
	url     string
	stop    func()
	policy  string
}

// newMeasured returns a workload at v1 whose template is v2, and the policy of the example, measured within seconds.
func newMeasured(t *testing.T) *measured {
	t.Helper()
	m := &measured{workload: newEnv(t).adopt(model("model", 4, 2))}
	m.metrics = vllm.NewMetrics(func(ctx context.Context) ([]corev1.Pod, error) {
		list, err := m.kube.CoreV1().Pods(m.namespace).List(ctx, metav1.ListOptions{LabelSelector: lws.SetNameLabelKey})
		if err != nil {
			return nil, err
		}
		return list.Items, nil
	})
	target := httptest.NewServer(m.metrics)
	t.Cleanup(target.Close)
	var err error
	m.url, m.stop, err = cluster.StartPrometheus(t.Context(), t.TempDir(), strings.TrimPrefix(target.URL, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { m.stop() })
	example := files.Read(t, filepath.Join("..", "..", "examples", "gates.yaml"))
	quick := "{window: 10s, interval: 1s, "
	text := strings.NewReplacer("count: 10", "window: 10s\n    count: 5", "interval: 30s", "interval: 1s",
		"- template: vllm-ttft", "- "+quick+"template: vllm-ttft}", "- template: vllm-itl\n    max: 1.1", "- "+quick+"template: vllm-itl, max: 1.1}").Replace(string(example))
	m.policy = filepath.Join(t.TempDir(), "policy.yaml")
	files.Write(t, m.policy, []byte(text))
	m.edit(image("v2"))
	return m
}

// release runs `lockstep release`, and returns its documents.
func (m *measured) release(flags ...string) (text string, documents []view.Document, code int) {
	m.t.Helper()
	args := append([]string{"release", "model", "--policy", m.policy, "--prometheus", m.url, "-o", "json"}, flags...)
	text, code = m.lockstep(args...)
	for line := range strings.Lines(text) {
		var d view.Document
		require.NoError(m.t, json.Unmarshal([]byte(line), &d), line)
		documents = append(documents, d)
	}
	return text, documents, code
}

// gates returns the last results of a gate, one for each batch that was measured.
func gates(documents []view.Document, name string) (results []gate.Result) {
	batch := ""
	for _, d := range documents {
		if d.Event == "batch-ready" {
			batch = d.Message
		}
		for _, r := range d.Gates {
			if r.Name != name {
				continue
			}
			if batch != "" || len(results) == 0 {
				results, batch = append(results, r), ""
			}
			results[len(results)-1] = r
		}
	}
	return results
}

// The published policy releases a canary whose metrics are those of the stable groups, and rolls back one that is slow. The reason is
// in the history, in the context and in the event.
//
// Proves (test): Gates with a real Prometheus: a slow canary is rolled back, a good one promoted.
func TestGates(t *testing.T) {
	t.Parallel()
	m := newMeasured(t)
	m.metrics.Slow.Store(true)
	recorded, documents, code := m.release("--release-id", "slow")
	require.Equal(t, 4, code, "exit code %d\n%s", code, recorded)
	slow := gates(documents, "vllm-ttft")
	assert.False(t, len(slow) != 1 || slow[0].Verdict != gate.Failed || slow[0].Value == nil || *slow[0].Value < 2 || *slow[0].Value > 4 || slow[0].FailedCount != 2,
		"the gate of a canary that is three times as slow: %+v", slow)
	const why = "gate vllm-ttft failed: 2 of "
	last := documents[len(documents)-1]
	assert.True(t, last.Outcome == "rolled-back" && strings.Contains(last.Message, why), "the last document: %+v", last)
	c := m.awaitState(pb.State_STATE_ROLLED_BACK)
	assert.True(t, strings.HasPrefix(c.GetEndMessage(), why), "the context says %q", c.GetEndMessage())
	history, _ := m.lockstep("history", "model")
	m.mustContain(history, "rolled back", why)
	m.eventually("an event with the reason", func(ctx context.Context) error { return m.hasEvent(ctx, "model", why) })

	m.metrics.Slow.Store(false)
	recorded, documents, code = m.release("--release-id", "good")
	require.Zero(t, code, "exit code %d\n%s", code, recorded)
	for _, name := range []string{"vllm-ttft", "vllm-itl", "errors"} {
		passed := gates(documents, name)
		assert.True(t, len(passed) == 2 && passed[0].Verdict == gate.Passed && passed[1].Verdict == gate.Passed,
			"gate %s of two batches: %+v", name, passed)
	}
	m.mustBeIdle()
}

// hasEvent returns nil if an event about a workload contains the words.
func (e *env) hasEvent(ctx context.Context, name, words string) error {
	events, err := e.events(ctx, name)
	if err != nil {
		return err
	}
	for i := range events {
		if strings.Contains(events[i].Note, words) {
			return nil
		}
	}
	return errors.New("no event contains " + words)
}

// With --on-gate-failure pause the release stays at its batch, and the same command continues it.
//
// Proves: Gates: a pause, no data, no answer.
func TestGatesPause(t *testing.T) {
	t.Parallel()
	m := newMeasured(t)
	m.metrics.Failing.Store(true)
	out, _, code := m.release("--release-id", "r1", "--on-gate-failure", "pause")
	require.Equal(t, 3, code, "exit code %d\n%s", code, out)
	c := m.awaitState(pb.State_STATE_READY)
	assert.True(t, c.GetCurrentBatch() == 0 && c.GetEndMessage() == "", "batch %d, %q", c.GetCurrentBatch(), c.GetEndMessage())
	m.metrics.Failing.Store(false)
	out, _, code = m.release("--release-id", "r1", "--on-gate-failure", "pause")
	require.Zero(t, code, "exit code %d\n%s", code, out)
	m.awaitState(pb.State_STATE_COMPLETED)
}

// Prometheus accepts the query of each template. Without data the release is rolled back. When Prometheus ends in mid-release, the
// release stays at its batch, and without Prometheus nothing is released.
//
// Proves: Gates: a pause, no data, no answer.
func TestGatesWithoutAnswer(t *testing.T) {
	t.Parallel()
	m := newMeasured(t)
	server, err := gate.NewPrometheus(m.url, "")
	require.NoError(t, err)
	for _, g := range gate.Templates() {
		g, err := gate.Template(g.Name)
		require.NoError(t, err)
		assert.NoError(t, server.Measure(t.Context(), g, gate.Subject{Namespace: "a", UpdateRevision: "b", StableRevision: "c"}).Err,
			"Prometheus refuses the query of %s", g.Name)
	}
	text := files.Read(t, m.policy)
	files.Write(t, m.policy, []byte(strings.ReplaceAll(string(text), "vllm:request_success_total", "vllm:no_such_metric")))
	out, documents, code := m.release("--release-id", "r1")
	require.Equal(t, 4, code, "without data: exit code %d\n%s", code, out)
	got := gates(documents, "errors")
	assert.True(t, len(got) == 1 && got[0].Value == nil && strings.Contains(got[0].Message, "no data"), "without data: %+v", got)
	// The gates pass, but for the third, which has no answer any more.
	files.Write(t, m.policy, []byte(strings.ReplaceAll(string(text), "count: 5", "count: 10000")))
	ended := make(chan int, 1)
	go func() {
		out, documents, code = m.release("--release-id", "r2", "--retry-for", "3s")
		ended <- code
	}()
	m.await("the gates are measured", func(c *pb.BatchContext) bool {
		return c.GetReleaseId() == "r2" && c.GetState() == pb.State_STATE_READY
	})
	m.stop()
	m.stop = func() {}
	if code := <-ended; code != 3 || !strings.Contains(out, "Prometheus has not answered for 3s") {
		t.Fatalf("Prometheus ended: exit code %d\n%s", code, out)
	}
	c := m.awaitState(pb.State_STATE_READY)
	assert.True(t, c.GetReleaseId() == "r2" && c.GetEndMessage() == "", "release %s, %q", c.GetReleaseId(), c.GetEndMessage())
	before := m.ownWrites()
	out, _, code = m.release("--release-id", "r2")
	assert.Equal(t, 1, code, "without Prometheus: exit code %d\n%s", code, out)
	if after := m.ownWrites(); len(after) != len(before) {
		t.Errorf("without Prometheus the driver wrote %q", after[len(before):])
	}
}

// The template http-errors needs the status of requests in one of its labels. Without it there is no data, and no success.
//
// Proves: Gates: a pause, no data, no answer.
func TestGateOfHTTPErrors(t *testing.T) {
	t.Parallel()
	var scrapes atomic.Int64
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := scrapes.Add(1)
		for name, label := range map[string]string{"words": `status=%q`, "codes": `code="%.1s00"`, "groups": `status=%q,other="a"`, "other": `status_code="%.1s00"`} {
			good, bad := "2xx", "5xx"
			if name == "words" {
				good, bad = "success", "error"
			}
			const series = `http_requests_total{namespace="a",leaderworkerset_sigs_k8s_io_name=%q,leaderworkerset_sigs_k8s_io_template_revision_hash="new",%s} %d` + "\n"
			fmt.Fprintf(w, series+series, name, fmt.Sprintf(label, good), 3*n, name, fmt.Sprintf(label, bad), n)
		}
	}))
	t.Cleanup(target.Close)
	url, stop, err := cluster.StartPrometheus(t.Context(), t.TempDir(), strings.TrimPrefix(target.URL, "http://"))
	require.NoError(t, err)
	t.Cleanup(stop)
	server, err := gate.NewPrometheus(url, "")
	require.NoError(t, err)
	g, err := gate.Template("http-errors")
	require.NoError(t, err)
	measure := func(name string) gate.Measurement {
		return server.Measure(t.Context(), g, gate.Subject{Namespace: "a", Name: name, UpdateRevision: "new"})
	}
	for _, name := range []string{"codes", "groups"} {
		await.True(t, "a rate of "+name, func() bool { return measure(name).Value != nil })
		assert.InDelta(t, 0.25, *measure(name).Value, 0.01, "the share of failed requests by %s", name)
	}
	for _, name := range []string{"words", "other"} {
		assert.Contains(t, measure(name).Problem, "no data", "by %s", name)
	}
}
