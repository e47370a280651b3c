// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/internal/gate"
	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/hosttest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// metrics answers each query by a function, and remembers what the queries were about.
type metrics struct {
	answer func(number int) gate.Measurement

	mu    sync.Mutex
	about []gate.Subject
}

func (m *metrics) Measure(_ context.Context, _ gate.Gate, about gate.Subject) gate.Measurement {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.about = append(m.about, about)
	return m.answer(len(m.about))
}

// always answers each query with a value.
func always(value float64) func(int) gate.Measurement {
	return func(int) gate.Measurement { return gate.Measurement{Value: &value} }
}

// atOnce is a gate of one measurement, as soon as the batch is ready.
func atOnce(r *host.Release) {
	r.Gates = []gate.Gate{{
		Name: "errors", Query: "up", Max: new(0.01), Count: 1, Interval: model.Duration(1e9), Delay: new(model.Duration(0)),
	}}
}

func TestReleaseWithGates(t *testing.T) {
	t.Parallel()
	all := []string{"Initialize r1", "UpgradeBatch 0", "UpgradeBatch 1", "UpgradeBatch 2", "Finalize PROMOTE"}
	cases := map[string]struct {
		reason  string
		release func(*host.Release)
		answer  func(number int) gate.Measurement
		outcome host.Outcome
		calls   []string
		failure string
		kinds   []host.EventKind
	}{
		"Pass": {
			"each batch is measured", atOnce, always(0), host.OutcomePromoted, all, "",
			[]host.EventKind{host.EventGates, host.EventGates, host.EventGates},
		},
		"Fail": {
			// The first measurement is that of the check before the release.
			"a gate that fails after the second batch rolls back", atOnce, func(n int) gate.Measurement { return always(float64(n / 3))(n) },
			host.OutcomeRolledBack, append(slices.Clone(all[:3]), "Finalize ROLLBACK"),
			"gate errors failed: 1 of 1 measurements failed, and 0 may; the last: 1, want at most 0.01",
			[]host.EventKind{host.EventGates, host.EventGates, host.EventGateFailed},
		},
		"Pause": {
			"or leaves the release as it is", func(r *host.Release) { atOnce(r); r.OnGateFailure = host.OnFailurePause }, always(1),
			host.OutcomeGateFailed, all[:2],
			"gate errors failed: 1 of 1 measurements failed, and 0 may; the last: 1, want at most 0.01",
			[]host.EventKind{host.EventGates, host.EventGateFailed},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			m := &metrics{answer: tc.answer}
			r.host.Metrics = m
			got, err := r.host.Release(deadline(t), release(tc.release))
			require.True(t, err == nil && got.Outcome == tc.outcome && got.Failure == tc.failure,
				"%s: %s, %q, %v; want %s, %q", tc.reason, got.Outcome, got.Failure, err, tc.outcome, tc.failure)
			assert.Empty(t, cmp.Diff(tc.calls, r.requests()), "%s: calls: -want, +got", tc.reason)
			kinds := slices.DeleteFunc(r.kinds(), func(k host.EventKind) bool { return k != host.EventGates && k != host.EventGateFailed })
			assert.Empty(t, cmp.Diff(tc.kinds, kinds), "%s: events: -want, +got", tc.reason)
			for _, e := range r.events {
				assert.Equal(t, len(e.Gates) == 1, e.Kind == host.EventGates || e.Kind == host.EventGateFailed,
					"event %s has %d gates", e.Kind, len(e.Gates))
			}
			want := gate.Subject{Namespace: "default", Name: "vllm", UpdateRevision: "bbbb", StableRevision: "aaaa"}
			assert.Equal(t, want, m.about[len(m.about)-1], "measured")
		})
	}
}

// A measurement counts although the driver does not answer right after it.
func TestReleaseKeepsItsMeasurements(t *testing.T) {
	t.Parallel()
	lost := make(chan error, 1)
	r := newRigOf(t, func(d *hosttest.Driver) {
		d.OnCalculate = func() error {
			select {
			case err := <-lost:
				return err
			default:
				return nil
			}
		}
	})
	r.host.Metrics = &metrics{answer: func(n int) gate.Measurement {
		if n == 2 { // the first one is the check before the release
			lost <- drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED, "the driver has restarted")
			return always(1)(n)
		}
		return always(0)(n)
	}}
	got, err := r.host.Release(deadline(t), release(atOnce))
	assert.True(t, err == nil && got.Outcome == host.OutcomeRolledBack, "the measurement that failed is lost: %s, %v", got.Outcome, err)
}

// A batch that is unready for a moment is measured anew, although the response that follows says that it is ready.
func TestReleaseMeasuresAgainAfterFlap(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	two := func(r *host.Release) { atOnce(r); r.Policy.Batches = r.Policy.Batches[:1]; r.Gates[0].Count = 2 }
	m := &metrics{}
	m.answer = func(n int) gate.Measurement {
		if n == 2 {
			r.fake.Set(func(c *pb.BatchContext) { c.Message = "seen in the watch" })
			r.eventually(t, "the watch shows the ready batch", func(e host.Event) bool { return e.Context.GetMessage() == "seen in the watch" })
			r.fake.Set(func(c *pb.BatchContext) { c.State = pb.State_STATE_UPGRADING })
			r.eventually(t, "the flap is seen", func(e host.Event) bool { return e.Context.GetState() == pb.State_STATE_UPGRADING })
			r.fake.Set(func(c *pb.BatchContext) { c.State = pb.State_STATE_READY })
		}
		return always(0)(n)
	}
	r.host.Metrics = m
	got, err := r.host.Release(deadline(t), release(two))
	require.True(t, err == nil && got.Outcome == host.OutcomePromoted, "%s, %v", got.Outcome, err)
	if n := len(m.about); n != 4 { // the check, the one of the flap, and two in a row
		t.Errorf("%d measurements, want 4", n)
	}
}

// That Prometheus does not answer leaves the release at its batch, whatever is to be done about a gate that fails.
func TestReleaseWithoutAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.host.Timing.Patience = time.Millisecond
	r.host.Metrics = &metrics{answer: func(n int) gate.Measurement {
		if n > 1 {
			return gate.Measurement{Err: errors.New("connection refused")}
		}
		return always(0)(n)
	}}
	got, err := r.host.Release(deadline(t), release(atOnce))
	assert.True(t, err == nil && got.Outcome == host.OutcomeGateFailed && strings.Contains(got.Failure, "Prometheus has not answered"),
		"%s, %q, %v", got.Outcome, got.Failure, err)
}

// A gate that can't be measured refuses the release before its first request.
func TestReleaseChecksItsGates(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.host.Metrics = &metrics{answer: func(int) gate.Measurement { return gate.Measurement{Err: errors.New("parse error")} }}
	_, err := r.host.Release(deadline(t), release(atOnce))
	assert.ErrorContains(t, err, "gate errors can't be measured, so nothing was changed: parse error", "with an invalid query")
	assert.Empty(t, r.requests(), "calls")
}

// Ctrl-C while the gates are checked is an interruption like any other, not a gate that can't be measured.
func TestReleaseIsInterruptedAtItsGates(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, interrupt := context.WithCancel(deadline(t))
	r.host.Metrics = &metrics{answer: func(int) gate.Measurement {
		interrupt()
		return gate.Measurement{Err: ctx.Err()}
	}}
	got, err := r.host.Release(ctx, release(atOnce))
	assert.True(t, err == nil && got.Outcome == host.OutcomeInterrupted, "Release(...) = %q, %v; want interrupted", got.Outcome, err)
	assert.Empty(t, r.requests(), "calls")
}

func TestABatchIsReadyWhenItsWeightIsInForce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	slow := func(_ int32, c *pb.BatchContext) error {
		// The gateway takes a moment.
		c.State, c.Reason, c.Message = pb.State_STATE_VERIFYING, "RouteNotObserved", "the gateway has not taken the route yet"
		return nil
	}
	r.fake.OnSetWeight = slow
	ctx, done := deadline(t), make(chan error, 1)
	go func() {
		_, err := r.host.Release(ctx, release(func(r *host.Release) { routes(r); r.Policy.Batches = []string{"25%", "100%"} }))
		done <- err
	}()
	for range 2 {
		r.eventually(t, "it is VERIFYING", func(e host.Event) bool { return e.Context.GetState() == pb.State_STATE_VERIFYING })
		require.NoError(t, r.fake.Await(ctx, func(c *pb.BatchContext, _ []string) bool {
			return c.GetState() == pb.State_STATE_VERIFYING
		}))
		weights := strings.Count(strings.Join(r.fake.Calls(), " "), "SetWeight")
		ready := 0
		for _, kind := range r.kinds() {
			if kind == host.EventBatchReady {
				ready++
			}
		}
		assert.Equal(t, weights-1, ready, "%d batches were announced as ready, with %d weights in force", ready, weights-1)
		r.fake.Set(func(c *pb.BatchContext) { c.State = pb.State_STATE_READY })
	}
	require.NoError(t, <-done)
	want := []host.EventKind{
		host.EventStarted, host.EventBatchStarted, host.EventWeight, host.EventBatchReady,
		host.EventBatchStarted, host.EventWeight, host.EventBatchReady, host.EventPromoting, host.EventFinished,
	}
	assert.Empty(t, cmp.Diff(want, r.kinds()), "events: -want, +got")
}

// losing does what SetWeight asks for and loses its first answers.
type losing struct {
	*hosttest.Driver

	left int
}

func (d *losing) SetWeight(ctx context.Context, req *pb.SetWeightRequest) (*pb.SetWeightResponse, error) {
	resp, err := d.Driver.SetWeight(ctx, req)
	if d.left--; d.left >= 0 && err == nil {
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE, "the connection broke")
	}
	return resp, err
}

func TestReleaseRefusesWeights(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason  string
		release func(*host.Release)
		fake    func(*hosttest.Driver)
		want    string
	}{
		"NoCapability": {
			reason: "a driver that splits no requests is found out before the release begins", release: routes,
			fake: func(d *hosttest.Driver) { d.NoTraffic = true }, want: "does not list CAPABILITY_TRAFFIC_WEIGHT",
		},
		"InPlace": {
			reason: "no stable group is left to share with", want: "its weight is 100",
			release: func(r *host.Release) {
				routes(r)
				r.Policy.Style, r.Weights = pb.Style_STYLE_PARTITION, []int32{10, 50, 90}
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRigOf(t, tc.fake)
			_, err := r.host.Release(deadline(t), release(tc.release))
			assert.ErrorContains(t, err, tc.want, "%s: Release(...) = %v, want an error with %q", tc.reason, err, tc.want)
			calls := r.fake.Calls()
			assert.Empty(t, calls, "%s: calls = %v, want none", tc.reason, calls)
		})
	}
}
