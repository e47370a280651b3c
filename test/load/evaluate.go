// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/lockstep-rollouts/lockstep/test/podanswer"
)

const (
	// window is the number of consecutive requests that must have the wanted share.
	window = 200
	// matchWindow is the number of consecutive requests with the headers that must go to the right side.
	matchWindow = 20
)

// Row is the result of a phase.
type Row struct {
	Phase
	// Requests is the number of requests that completed or timed out. All other numbers are parts of it.
	Requests int
	// Failed is the number of requests that were not served.
	Failed int
	// Failures counts them by reason. Examples has an example of each.
	Failures map[string]int
	Examples map[string]string
	// ToWorkers, ToUnready (pods or groups) and ToGone were sent to pods that can't serve. Cut were not completed.
	ToWorkers, ToUnready, ToGone, Cut int
	// Terminating were served by a pod that was being deleted, which is not a failure.
	Terminating int
	// LeastReady and MostReady are numbers of groups, by Options.Ready.
	LeastReady, MostReady int
	// True reports whether the wanted share was reached, After this time. It is true without a wanted share.
	True  bool
	After time.Duration
	// Checked is the number of requests that started since. WrongSide and Shares are of these. The wrong side is one that should get
	// no requests, or, for requests with the headers of Options.Match, another one than WantMatch.
	Checked   int
	WrongSide int
	Shares    Shares
}

// evaluate returns the result of a phase so far.
func (p *phase) evaluate() Row {
	slices.SortFunc(p.records, func(a, b record) int { return cmp.Compare(a.begin, b.begin) })
	row := Row{Phase: p.Phase, Requests: len(p.records), Failures: map[string]int{}, Examples: map[string]string{}}
	for i, r := range p.records {
		row.count(r)
		row.MostReady = max(row.MostReady, r.ready)
		if i == 0 || r.ready < row.LeastReady {
			row.LeastReady = r.ready
		}
	}
	since, ok := p.settled()
	row.True = ok
	if !ok {
		row.Shares = sharesOf(p.shared())
		return row
	}
	row.After = max(0, since-p.begin)
	var shared []record
	for _, r := range p.records {
		if r.begin < since {
			continue
		}
		row.Checked++
		switch {
		case p.matched(r):
			if r.side != "" && r.side != p.WantMatch {
				row.WrongSide++
			}
		case r.side != "":
			shared = append(shared, r)
			if p.Want != nil && p.Want[r.side] == 0 {
				row.WrongSide++
			}
		}
	}
	row.Shares = sharesOf(shared)
	return row
}

func (row *Row) count(r record) {
	if r.terminating {
		row.Terminating++
	}
	if r.failure.kind == "" {
		return
	}
	row.Failed++
	row.Failures[r.failure.kind]++
	row.Examples[r.failure.kind] = r.failure.detail
	switch podanswer.Violation(r.failure.kind) {
	case podanswer.Worker:
		row.ToWorkers++
	case podanswer.Unready, podanswer.GroupUnready:
		row.ToUnready++
	case podanswer.Gone:
		row.ToGone++
	case podanswer.Cut:
		row.Cut++
	case podanswer.Unpaired: // it counts as failed
	}
}

// matched reports whether a request counts for the header match and not for the shares.
func (p *phase) matched(r record) bool { return r.match && p.WantMatch != "" }

// shared returns the requests that reached a pod and count for the shares, in their order.
func (p *phase) shared() []record {
	var all []record
	for _, r := range p.records {
		if r.side != "" && !p.matched(r) {
			all = append(all, r)
		}
	}
	return all
}

// settled returns the start of the first window with the wanted share and match.
func (p *phase) settled() (time.Duration, bool) {
	since := p.begin
	if p.Want != nil {
		at, ok := p.shareTrue(p.shared())
		if !ok {
			return 0, false
		}
		since = at
	}
	if p.WantMatch == "" {
		return since, true
	}
	at, ok := p.matchTrue()
	return max(since, at), ok
}

// shareTrue returns the start of the first window with the wanted share.
func (p *phase) shareTrue(records []record) (time.Duration, bool) {
	counts := map[string]int{}
	for i, r := range records {
		counts[r.side]++
		if i >= window {
			counts[records[i-window].side]--
		}
		if i < window-1 {
			continue
		}
		if p.offBy(percent(counts, window)) == "" {
			return records[i-window+1].begin, true
		}
	}
	return 0, false
}

// matchTrue returns the start of the first window of requests with the headers that all went to the right side.
func (p *phase) matchTrue() (time.Duration, bool) {
	var first time.Duration
	right := 0
	for _, r := range p.records {
		if !p.matched(r) || r.side == "" {
			continue
		}
		if r.side != p.WantMatch {
			right = 0
			continue
		}
		if right == 0 {
			first = r.begin
		}
		if right++; right == matchWindow {
			return first, true
		}
	}
	return 0, false
}

// offBy returns how shares differ from the wanted ones, or "".
func (p Phase) offBy(got Shares) string {
	sides := map[string]bool{}
	for side := range got {
		sides[side] = true
	}
	for side := range p.Want {
		sides[side] = true
	}
	for _, side := range slices.Sorted(maps.Keys(sides)) {
		tolerance := p.tolerance()
		if p.Want[side] == 0 || p.Want[side] == 100 {
			tolerance = 0
		}
		if math.Abs(got[side]-p.Want[side]) > tolerance+1e-9 {
			return fmt.Sprintf("%s got %.1f %% and should get %g ± %g %%", side, got[side], p.Want[side], tolerance)
		}
	}
	return ""
}

func sharesOf(records []record) Shares {
	counts, n := map[string]int{}, 0
	for _, r := range records {
		if r.side != "" {
			counts[r.side]++
			n++
		}
	}
	return percent(counts, n)
}

func percent(counts map[string]int, n int) Shares {
	shares := Shares{}
	for side, count := range counts {
		if count > 0 {
			shares[side] = 100 * float64(count) / float64(n)
		}
	}
	return shares
}
