// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"strings"
	"time"
)

// Measurement is the answer to one query.
type Measurement struct {
	// Value is nil if Prometheus has none: Problem says why.
	Value   *float64
	Problem string
	// Err means that Prometheus did not answer, or not in full.
	Err error
}

// Verdict is the state of a gate, or of all gates of a batch.
type Verdict string

// Verdicts.
const (
	Measuring Verdict = "measuring"
	Passed    Verdict = "passed"
	Failed    Verdict = "failed"
	// Unanswered: Prometheus has not answered for too long.
	Unanswered Verdict = "unanswered"
)

// Result is the state of a gate for a batch. It is part of the command line's JSON and YAML output.
type Result struct {
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	// Time is that of the last measurement. Zero means that none was taken.
	Time time.Time `json:"time,omitzero"`
	// Value is the last one. Nil means that there is none.
	Value *float64 `json:"value,omitempty"`
	Min   *float64 `json:"min,omitempty"`
	Max   *float64 `json:"max,omitempty"`
	// Measured and FailedCount count the measurements so far, of Count.
	Measured    int `json:"measured"`
	FailedCount int `json:"failed"`
	Count       int `json:"count"`
	// Message says what the last measurement shows, or why there is none.
	Message string `json:"message"`
}

// Run counts the measurements of the gates for one batch. The zero value has no gates, and has passed.
type Run struct {
	gates []progress
	// patience is for how long Prometheus may be silent.
	patience time.Duration
}

// silentInterval is how often a query is repeated that Prometheus does not answer.
const silentInterval = 5 * time.Second

// progress is one gate of a run.
type progress struct {
	Gate

	taken, failed int
	last          Measurement
	at, due       time.Time
	// silentSince is when the first of the newest queries in a row without an answer was made. Zero means that the last one was answered.
	silentSince time.Time
	gaveUp      bool
}

// Begin returns a run of a batch that is ready since now.
func Begin(gates []Gate, now time.Time, patience time.Duration) Run {
	r := Run{patience: patience}
	for _, g := range gates {
		r.gates = append(r.gates, progress{Gate: g, due: now.Add(time.Duration(*g.Delay))})
	}
	return r
}

// Verdict is Failed once a gate has failed, else Unanswered once one is, and Passed once all have passed.
func (r *Run) Verdict() Verdict {
	all := Passed
	for i := range r.gates {
		switch v := r.gates[i].verdict(); {
		case v == Failed:
			// A failed gate rolls back, also while another one is unanswered.
			return Failed
		case v == Unanswered, v == Measuring && all == Passed:
			all = v
		}
	}
	return all
}

// Due returns when the next measurement is due. It is zero once all gates have a verdict.
func (r *Run) Due() time.Time {
	var due time.Time
	for i := range r.gates {
		if p := &r.gates[i]; p.verdict() == Measuring && (due.IsZero() || p.due.Before(due)) {
			due = p.due
		}
	}
	return due
}

// DueAt returns the gates that are due.
func (r *Run) DueAt(now time.Time) []Gate {
	var due []Gate
	for i := range r.gates {
		if p := &r.gates[i]; p.verdict() == Measuring && !p.due.After(now) {
			due = append(due, p.Gate)
		}
	}
	return due
}

// Record counts measurements by the names of their gates.
func (r *Run) Record(taken map[string]Measurement, now time.Time) {
	for i := range r.gates {
		if m, ok := taken[r.gates[i].Name]; ok {
			r.gates[i].record(m, now, r.patience)
		}
	}
}

func (p *progress) record(m Measurement, now time.Time, patience time.Duration) {
	p.last, p.due = m, now.Add(time.Duration(p.Interval))
	if m.Err != nil {
		p.due = now.Add(min(time.Duration(p.Interval), silentInterval))
		if p.silentSince.IsZero() {
			p.silentSince = now
		}
		p.gaveUp = now.Sub(p.silentSince) >= patience
		return
	}
	p.silentSince = time.Time{}
	p.at = now
	p.taken++
	if m.Value == nil || !p.Passes(*m.Value) {
		p.failed++
	}
}

func (p *progress) verdict() Verdict {
	switch {
	case p.failed > p.FailureLimit:
		// The other measurements can't make the gate pass any more.
		return Failed
	case p.gaveUp:
		return Unanswered
	case p.taken >= p.Count:
		return Passed
	default:
		return Measuring
	}
}

// message describes the last measurement.
func (p *progress) message() string {
	switch m := p.last; {
	case m.Err != nil:
		return fmt.Sprintf("%s: no answer: %s", p.Name, m.Err)
	case m.Value != nil && p.Passes(*m.Value):
		return fmt.Sprintf("%s %s, %s (%d/%d)", p.Name, formatNumber(*m.Value), p.Limits(), p.taken, p.Count)
	case m.Value != nil:
		return fmt.Sprintf("%s %s, want %s (%d/%d)", p.Name, formatNumber(*m.Value), p.Limits(), p.taken, p.Count)
	case m.Problem != "":
		return fmt.Sprintf("%s: %s (%d/%d)", p.Name, m.Problem, p.taken, p.Count)
	default:
		return p.Name + ": not measured yet"
	}
}

// Results returns the state of each gate.
func (r *Run) Results() []Result {
	results := make([]Result, 0, len(r.gates))
	for i := range r.gates {
		p := &r.gates[i]
		results = append(results, Result{
			Name: p.Name, Verdict: p.verdict(), Time: p.at, Value: p.last.Value, Min: p.Min, Max: p.Max,
			Measured: p.taken, FailedCount: p.failed, Count: p.Count, Message: p.message(),
		})
	}
	return results
}

// String describes the last measurements in a line.
func (r *Run) String() string {
	words := make([]string, 0, len(r.gates))
	for i := range r.gates {
		words = append(words, r.gates[i].message())
	}
	return strings.Join(words, "; ")
}

// Failure says which gates have failed, and why.
func (r *Run) Failure() string {
	var words []string
	for i := range r.gates {
		if v := r.gates[i].verdict(); v == Failed || v == Unanswered {
			p := &r.gates[i]
			words = append(words, p.failure(r.patience))
		}
	}
	return strings.Join(words, "; ")
}

func (p *progress) failure(patience time.Duration) string {
	if p.gaveUp {
		return fmt.Sprintf("gate %s is unanswered: Prometheus has not answered for %s: %s", p.Name, patience, p.last.Err)
	}
	text := fmt.Sprintf("gate %s failed: %d of %d measurements failed, and %d may; the last: ", p.Name, p.failed, p.taken, p.FailureLimit)
	if p.last.Value == nil {
		return text + p.last.Problem
	}
	return text + fmt.Sprintf("%s, want %s", formatNumber(*p.last.Value), p.Limits())
}
