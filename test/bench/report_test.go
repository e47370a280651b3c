// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package bench

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
	machine string
	tables  [][]string // of lines, whose cells are separated by tabs
	aims    []string
}

// table adds a table. row adds a row to it, of which the first cell says what the others are; "|" separates them.
func (r *report) table(title string, columns ...string) (row func(what, cells string, args ...any)) {
	i := len(r.tables)
	r.tables = append(r.tables, []string{strings.Join(append([]string{"\n" + title}, columns...), "\t")})
	return func(what, cells string, args ...any) {
		r.tables[i] = append(r.tables[i], what+"\t"+strings.ReplaceAll(fmt.Sprintf(cells, args...), "|", "\t"))
	}
}

// aim adds a target, and whether this run met it. It has no effect on the result.
func (r *report) aim(met bool, what, want, figure string, args ...any) {
	verdict := map[bool]string{true: "met", false: "MISSED"}[met]
	r.aims = append(r.aims, strings.Join([]string{what, want, fmt.Sprintf(figure, args...), verdict}, "\t"))
}

func (r *report) write(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, line := range slices.Concat([]string{"machine: " + r.machine}, slices.Concat(r.tables...), []string{"\nAIM\tWANTED\tMEASURED\t"}, r.aims) {
		_, _ = fmt.Fprintln(t, line)
	}
	_ = t.Flush()
}

// spread is a distribution of times.
type spread struct{ median, least, most time.Duration }

func spreadOf(all []time.Duration) spread {
	return spread{median(all), slices.Min(all), slices.Max(all)}
}

func (s spread) String() string {
	if s.most < time.Second {
		return fmt.Sprintf("%d ms (%d-%d)", s.median.Milliseconds(), s.least.Milliseconds(), s.most.Milliseconds())
	}
	return fmt.Sprintf("%.2f s (%.2f-%.2f)", s.median.Seconds(), s.least.Seconds(), s.most.Seconds())
}

func median[T float64 | time.Duration](all []T) T {
	sorted := slices.Sorted(slices.Values(all))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// machine describes where the figures were measured.
func machine() string {
	model := "unknown CPU"
	raw, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(raw)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			model = strings.TrimSpace(value)
			break
		}
	}
	raw, _ = os.ReadFile("/proc/loadavg")
	load, _, _ := strings.Cut(string(raw), " ")
	return fmt.Sprintf("%d x %s, load %s at the beginning, %s", runtime.NumCPU(), model, load, runtime.Version())
}
