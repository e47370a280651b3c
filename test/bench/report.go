// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// report has all measurements of one run.
type report struct {
	Machine string
	Tables  []*table
	Aims    []aim
}

// table is what a part has measured. The first cell of a row says what its others are.
type table struct {
	Title   string
	Columns []string
	Rows    [][]string
}

// aim is a target, and whether this run met it. It has no effect on the result.
type aim struct {
	What   string
	Aim    string
	Figure string
	Met    bool
}

func (r *report) table(title string, columns ...string) *table {
	t := &table{Title: title, Columns: columns}
	r.Tables = append(r.Tables, t)
	return t
}

// row adds a row; "|" separates cells.
func (t *table) row(what, cells string, args ...any) {
	t.Rows = append(t.Rows, append([]string{what}, strings.Split(fmt.Sprintf(cells, args...), "|")...))
}

func (r *report) aim(met bool, what, want, figure string, args ...any) {
	r.Aims = append(r.Aims, aim{what, want, fmt.Sprintf(figure, args...), met})
}

func (r *report) writeText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(cells ...string) { _, _ = fmt.Fprintln(t, strings.Join(cells, "\t")) }
	line("machine: " + r.Machine)
	for _, of := range r.Tables {
		line(append([]string{"\n" + of.Title}, of.Columns...)...)
		for _, row := range of.Rows {
			line(row...)
		}
	}
	if len(r.Aims) > 0 {
		line("\nAIM", "WANTED", "MEASURED", "")
	}
	for _, a := range r.Aims {
		line(a.What, a.Aim, a.Figure, map[bool]string{true: "met", false: "MISSED"}[a.Met])
	}
	return t.Flush()
}

// spread is a distribution of times.
type spread struct{ median, least, most time.Duration }

func spreadOf(all []time.Duration) spread {
	sorted := slices.Sorted(slices.Values(all))
	n := len(sorted)
	return spread{(sorted[(n-1)/2] + sorted[n/2]) / 2, sorted[0], sorted[n-1]}
}

func (s spread) String() string {
	if s.most < time.Second {
		return fmt.Sprintf("%d ms (%d-%d)", s.median.Milliseconds(), s.least.Milliseconds(), s.most.Milliseconds())
	}
	return fmt.Sprintf("%.2f s (%.2f-%.2f)", seconds(s.median), seconds(s.least), seconds(s.most))
}

func medianOf(all []int) float64 {
	sorted := slices.Sorted(slices.Values(all))
	n := len(sorted)
	return float64(sorted[(n-1)/2]+sorted[n/2]) / 2
}

func seconds(d time.Duration) float64 { return d.Seconds() }

// machine describes where the figures were measured.
func machine() string {
	model := "unknown CPU"
	if raw, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(raw)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	load := "?"
	if raw, err := os.ReadFile("/proc/loadavg"); err == nil {
		load, _, _ = strings.Cut(string(raw), " ")
	}
	return fmt.Sprintf("%d x %s, load %s at the beginning, %s", runtime.NumCPU(), model, load, runtime.Version())
}
