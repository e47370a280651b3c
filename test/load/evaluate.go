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

	"github.com/lockstep-rollouts/lockstep/test/podserver"
)

const (
	// window is how many requests in a row must have the wanted share for it to be true.
	window = 200
	// matchWindow is how many requests with the headers must go to the right side in a row.
	matchWindow = 20
)

// Row is what became of the requests of a phase.
type Row struct {
	Phase
	// Requests is how many were answered or given up. All further figures are parts of it.
	Requests int
	// Failed is how many were not served, for whatever reason.
	Failed int
	// Failures are these by reason, with an example of each.
	Failures map[string]int
	Examples map[string]string
	// ToWorkers, ToUnready (pods or groups) and ToGone were sent where nobody can serve; Cut were begun and not ended.
	ToWorkers, ToUnready, ToGone, Cut int
	// Terminating were served by a pod that was already being deleted. That is no failure.
	Terminating int
	// True: the wanted share became true, After so long. It is always so with no wanted share.
	True  bool
	After time.Duration
	// Checked is how many requests began since; WrongSide and Shares are of them. A request with the headers of Options.Match that came to another side
	// than WantMatch is on the wrong side, and one that came to a side which should get nothing.
	Checked   int
	WrongSide int
	Shares    Shares
}

// evaluate judges the requests of a phase that have been answered so far.
func (p *phase) evaluate() Row {
	slices.SortFunc(p.records, func(a, b record) int { return cmp.Compare(a.begin, b.begin) })
	row := Row{Phase: p.Phase, Requests: len(p.records), Failures: map[string]int{}, Examples: map[string]string{}}
	for _, r := range p.records {
		row.count(r)
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
	switch podserver.Violation(r.failure.kind) {
	case podserver.Worker:
		row.ToWorkers++
	case podserver.Unready, podserver.GroupUnready:
		row.ToUnready++
	case podserver.Gone:
		row.ToGone++
	case podserver.Cut:
		row.Cut++
	}
}

// matched tells whether a request belongs to the header match and not to the shares.
func (p *phase) matched(r record) bool { return r.match && p.WantMatch != "" }

// shared are the requests that came to a pod and count in the shares, in their order.
func (p *phase) shared() []record {
	var all []record
	for _, r := range p.records {
		if r.side != "" && !p.matched(r) {
			all = append(all, r)
		}
	}
	return all
}

// settled returns the time from which on all is as wanted: where the first window begins in which it is.
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

// shareTrue slides a window over the requests.
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

// matchTrue looks for the first requests with the headers that all went to the right side.
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

// offBy says how shares differ from the wanted ones, or "".
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
