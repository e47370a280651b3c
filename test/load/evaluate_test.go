// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// pattern returns n requests, one per millisecond, whose sides repeat.
func pattern(from time.Duration, n int, sides ...string) []record {
	records := make([]record, n)
	for i := range records {
		records[i] = record{begin: from + time.Duration(i)*time.Millisecond, side: sides[i%len(sides)]}
	}
	return records
}

func concat(parts ...[]record) []record {
	var all []record
	for _, part := range parts {
		all = append(all, part...)
	}
	return all
}

// withMatch sets headers on every second request, and their side.
func withMatch(records []record, side string) []record {
	for i := range records {
		if i%2 == 1 {
			records[i].match, records[i].side = true, side
		}
	}
	return records
}

var quarter = []string{"s", "s", "c", "s"}

func TestEvaluate(t *testing.T) {
	want := Shares{"s": 75, "c": 25}
	for _, test := range []struct {
		name    string
		phase   Phase
		records []record
		problem string // "" for none
		after   time.Duration
		reason  string
	}{
		{"wanted share", Phase{Want: want}, pattern(0, 1000, quarter...), "", 0, "it is reached at the start"},
		{
			"wanted share later", Phase{Want: want}, concat(pattern(0, 100, "s"), pattern(100*time.Millisecond, 1000, quarter...)), "",
			83 * time.Millisecond, "the first window that is within two points has 17 old requests",
		},
		{"no wanted share", Phase{}, pattern(0, 10, "s", "c"), "", 0, "failures only"},
		{"another share", Phase{Want: want}, pattern(0, 1000, "s", "s", "s", "s", "s", "c"), "c got 16.", -1, "17 % is not 25 %"},
		{"too few requests", Phase{Want: want}, pattern(0, window-1, quarter...), "in a row", -1, "it may be chance"},
		{
			"drifts away", Phase{Want: want}, concat(pattern(0, 300, quarter...), pattern(300*time.Millisecond, 1000, "s")),
			"should get", 0, "it was reached, but not kept",
		},
		{
			"a side that should get nothing", Phase{Want: Shares{"s": 100}},
			concat(pattern(0, 900, "s"), pattern(900*time.Millisecond, 1, "c"), pattern(901*time.Millisecond, 99, "s")),
			"1 of 1000 requests went to the wrong side", 0, "one is too many",
		},
		{
			"an unknown side", Phase{Want: want},
			concat(pattern(0, 500, quarter...), pattern(500*time.Millisecond, 1, "x"), pattern(501*time.Millisecond, 500, quarter...)),
			"wrong side", 0, "one is too many",
		},
		{"match", Phase{Want: Shares{"s": 100}, WantMatch: "c"}, withMatch(pattern(0, 1000, "s"), "c"), "", time.Millisecond, "every second one has the headers"},
		{
			"match later", Phase{Want: Shares{"s": 100}, WantMatch: "c"},
			concat(withMatch(pattern(0, 100, "s"), "s"), withMatch(pattern(100*time.Millisecond, 1000, "s"), "c")), "", 101 * time.Millisecond,
			"earlier requests do not count",
		},
		{
			"match drifts away", Phase{Want: Shares{"s": 100}, WantMatch: "c"},
			concat(withMatch(pattern(0, 900, "s"), "c"), withMatch(pattern(900*time.Millisecond, 100, "s"), "s")), "50 of 999 requests went to the wrong side", time.Millisecond,
			"they have the headers, but went to the stable side",
		},
		{"no match", Phase{Want: Shares{"s": 100}, WantMatch: "c"}, withMatch(pattern(0, 1000, "s"), "s"), "header match", -1, "no rule for the headers"},
		{
			"headers without a match", Phase{Want: Shares{"s": 100}}, withMatch(pattern(0, 1000, "s"), "s"), "", 0,
			"they count like all others",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := phase{Phase: test.phase, records: test.records}
			row := p.evaluate()
			assert.False(t, row.True != (test.after >= 0) || row.True && row.After != test.after,
				"true=%t after %s, want %s: %s", row.True, row.After, test.after, test.reason)
			problems := strings.Join(row.problems(), "\n")
			assert.False(t, test.problem == "" && problems != "" || !strings.Contains(problems, test.problem),
				"problems %q, want %q: %s", problems, test.problem, test.reason)
		})
	}
}

// Failures count at any time of a phase, but not in the shares unless a pod answered.
func TestFailures(t *testing.T) {
	records := pattern(0, 1000, quarter...)
	for i, kind := range []string{"worker", "unready", "group-unready", "gone", "cut", failedGateway, failedTimeout} {
		records[4*i].failure = failure{kind, "an example"}
		if kind == "gone" || kind == failedGateway || kind == failedTimeout {
			records[4*i].side = ""
		}
	}
	records[999].terminating = true
	p := phase{Phase: Phase{Want: Shares{"s": 75, "c": 25}}, records: records}
	row := p.evaluate()
	got := [...]int{row.Requests, row.Failed, row.ToWorkers, row.ToUnready, row.ToGone, row.Cut, row.Terminating, row.Checked}
	assert.Equal(t, [...]int{1000, 7, 1, 2, 1, 1, 1, 1000}, got, "counts")
	if problems := row.problems(); len(problems) != 1 || !strings.Contains(problems[0], "7 of 1000 requests failed: 1 cut (e.g. an example), 1 gateway") {
		t.Errorf("problems %q", problems)
	}
	p.MayFail = true
	assert.Empty(t, p.evaluate().problems(), "problems in a phase that may fail")
}

// A group that is missing for one request is a problem of its phase.
func TestReadyGroups(t *testing.T) {
	t.Parallel()
	p := phase{Phase: Phase{MinReady: 3}, records: pattern(0, 10, "s")}
	for i := range p.records {
		p.records[i].ready = 3
	}
	if row := p.evaluate(); len(row.problems()) > 0 || row.LeastReady != 3 || row.MostReady != 3 {
		t.Errorf("ready %d-%d, problems %q", row.LeastReady, row.MostReady, row.problems())
	}
	p.records[4].ready, p.records[7].ready = 2, 5
	row := p.evaluate()
	if problems := strings.Join(row.problems(), "\n"); problems != "only 2 groups were ready, want at least 3" || row.MostReady != 5 {
		t.Errorf("ready %d-%d, problems %q", row.LeastReady, row.MostReady, problems)
	}
}
