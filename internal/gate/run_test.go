// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var noon = time.Date(2026, time.January, 2, 12, 0, 0, 0, time.UTC)

// three is a gate of three measurements, of which one may fail.
func three(name string) Gate {
	return Gate{
		Name: name, Query: "up", Max: new(1.0), Count: 3, FailureLimit: 1,
		Interval: model.Duration(10 * time.Second), Delay: new(model.Duration(time.Minute)),
	}
}

func value(v float64) Measurement { return Measurement{Value: &v} }

var (
	noData   = Measurement{Problem: "no data"}
	noAnswer = Measurement{Err: errors.New("connection refused")}
)

func TestRunOfOneGate(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason   string
		measured []Measurement
		want     Verdict
		failure  string
	}{
		"Unmeasured": {"a gate does not pass unmeasured", nil, Measuring, ""},
		"TooFew":     {"all measurements are needed", []Measurement{value(0), value(1)}, Measuring, ""},
		"Pass":       {"a value at the limit passes", []Measurement{value(0), value(1), value(0)}, Passed, ""},
		"OneFails":   {"as many may fail as allowed", []Measurement{value(2), value(1), value(0)}, Passed, ""},
		"TwoFail": {
			"it fails at once", []Measurement{value(2), value(2)}, Failed,
			"gate a failed: 2 of 2 measurements failed, and 1 may; the last: 2, want at most 1",
		},
		"NoData": {
			"no data is no success", []Measurement{noData, value(0), noData}, Failed,
			"gate a failed: 2 of 3 measurements failed, and 1 may; the last: no data",
		},
		"NaN":      {"nor is NaN", []Measurement{value(math.NaN()), value(math.NaN())}, Failed, "gate a failed: 2 of 2 measurements failed, and 1 may; the last: NaN, want at most 1"},
		"NoAnswer": {"a query without an answer does not count", []Measurement{noAnswer, noAnswer, value(0), value(0)}, Measuring, ""},
		"Outage":   {"an outage that ends is none", []Measurement{noAnswer, noAnswer, value(0), noAnswer, noAnswer, value(0), value(0)}, Passed, ""},
		"LongOutage": {
			"Prometheus may be silent for the patience, which is 20 s here", []Measurement{value(0), noAnswer, noAnswer, noAnswer, noAnswer, noAnswer}, Unanswered,
			"gate a is unanswered: Prometheus has not answered for 20s: connection refused",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := noon
			r := Begin([]Gate{three("a")}, now, 20*time.Second)
			for _, m := range tc.measured {
				require.Equal(t, Measuring, r.Verdict(), "%s: decided before %v", tc.reason, m)
				assert.Empty(t, r.DueAt(r.Due().Add(-time.Nanosecond)), "due before it is due")
				now = r.Due()
				due := r.DueAt(now)
				require.Len(t, due, 1, "%d gates due", len(due))
				r.Record(map[string]Measurement{"a": m}, now)
			}
			if got := r.Verdict(); got != tc.want || r.Failure() != tc.failure {
				t.Errorf("%s: verdict %s, want %s; failure %q, want %q", tc.reason, got, tc.want, r.Failure(), tc.failure)
			}
			assert.Equal(t, tc.want, r.Results()[0].Verdict, "the result")
			if (tc.want == Measuring) == r.Due().IsZero() {
				t.Errorf("verdict %s, due %s", tc.want, r.Due())
			}
		})
	}
}

func TestRunOfTwoGates(t *testing.T) {
	t.Parallel()
	slow := three("b")
	slow.Delay, slow.Interval = new(model.Duration(65*time.Second)), model.Duration(30*time.Second)
	r := Begin([]Gate{three("a"), slow}, noon, time.Minute)
	var order []string
	for now := r.Due(); !now.IsZero(); now = r.Due() {
		taken := map[string]Measurement{}
		for _, g := range r.DueAt(now) {
			order = append(order, g.Name+now.Sub(noon).String())
			taken[g.Name] = value(0)
		}
		r.Record(taken, now)
	}
	assert.Equal(t, "a1m0s b1m5s a1m10s a1m20s b1m35s b2m5s", strings.Join(order, " "), "measured")
	if r.Verdict() != Passed || r.String() != "a 0, at most 1 (3/3); b 0, at most 1 (3/3)" {
		t.Errorf("verdict %s: %s", r.Verdict(), &r)
	}
	r = Begin([]Gate{three("a"), slow}, noon, time.Minute)
	r.Record(map[string]Measurement{"a": value(0), "b": noData}, noon)
	r.Record(map[string]Measurement{"b": noData}, noon)
	if r.Verdict() != Failed || !strings.HasPrefix(r.Failure(), "gate b failed") {
		t.Errorf("one of two gates failed: %s, %q", r.Verdict(), r.Failure())
	}
	r = Begin([]Gate{three("a"), slow}, noon, 0)
	r.Record(map[string]Measurement{"a": noAnswer, "b": noAnswer}, noon)
	assert.Equal(t, Unanswered, r.Verdict(), "no gate is answered")
	r.Record(map[string]Measurement{"b": noData}, noon)
	r.Record(map[string]Measurement{"b": noData}, noon)
	assert.Equal(t, Failed, r.Verdict(), "one gate is unanswered, the other one failed")
	none := (&Run{})
	assert.True(t, none.Verdict() == Passed && none.Due().IsZero(), "a run without gates has not passed")
}
