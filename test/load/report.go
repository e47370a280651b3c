// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is the result of the load.
type Report struct {
	Rows []Row
	Took time.Duration
}

// Totals returns the number of completed and of failed requests of all phases.
func (r Report) Totals() (requests, failed int) {
	for _, row := range r.Rows {
		requests += row.Requests
		failed += row.Failed
	}
	return requests, failed
}

// Problems returns how phases differ from their expectations.
func (r Report) Problems() []string {
	var all []string
	for _, row := range r.Rows {
		for _, problem := range row.problems() {
			all = append(all, fmt.Sprintf("phase %q: %s", row.Name, problem))
		}
	}
	return all
}

func (row Row) problems() []string {
	var all []string
	if row.Failed > 0 && !row.MayFail {
		all = append(all, fmt.Sprintf("%d of %d requests failed: %s", row.Failed, row.Requests, row.reasons()))
	}
	if row.Requests > 0 && row.LeastReady < row.MinReady {
		all = append(all, fmt.Sprintf("only %d groups were ready, want at least %d", row.LeastReady, row.MinReady))
	}
	if !row.True {
		return append(all, fmt.Sprintf("after %d requests the shares are not as wanted: %s", row.Requests, row.notTrue()))
	}
	if off := row.offBy(row.Shares); row.Want != nil && off != "" {
		all = append(all, fmt.Sprintf("of %d requests %s", row.Checked, off))
	}
	if row.WrongSide > 0 {
		all = append(all, fmt.Sprintf("%d of %d requests went to the wrong side", row.WrongSide, row.Checked))
	}
	return all
}

// progress returns the progress of a phase.
func (row Row) progress(n int) string {
	if !row.True {
		return fmt.Sprintf("of %d requests (%d failed) %s", row.Requests, row.Failed, row.notTrue())
	}
	return fmt.Sprintf("%d of %d requests answered", row.Checked, n)
}

// notTrue returns why a row is not True.
func (row Row) notTrue() string {
	if off := row.offBy(row.Shares); row.Want != nil && off != "" {
		return off
	}
	return fmt.Sprintf("no %d requests in a row were as wanted (shares: %s; header match: %q)", window, row.shareColumn(), row.WantMatch)
}

func (row Row) reasons() string {
	reasons := make([]string, 0, len(row.Failures))
	for _, kind := range slices.Sorted(maps.Keys(row.Failures)) {
		reasons = append(reasons, fmt.Sprintf("%d %s (e.g. %s)", row.Failures[kind], kind, strings.TrimSpace(row.Examples[kind])))
	}
	return strings.Join(reasons, ", ")
}

// Write prints a table with a line per phase, and the reasons of failures.
func (r Report) Write(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "phase\trequests\tfailed\tto workers\tto unready\tto gone\tcut\tterminating\twrong side\tready groups\tshare, measured (wanted)\ttrue after")
	for _, row := range r.Rows {
		after := "never"
		if row.True {
			after = row.After.Round(time.Millisecond).String()
		}
		if row.Want == nil && row.WantMatch == "" {
			after = "-"
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t%s\n", row.Name, row.Requests, row.Failed, row.ToWorkers,
			row.ToUnready, row.ToGone, row.Cut, row.Terminating, row.WrongSide, row.readyColumn(), row.shareColumn(), after)
	}
	_ = table.Flush()
	for _, row := range r.Rows {
		if row.Failed > 0 {
			fmt.Fprintf(w, "%s: %s\n", row.Name, row.reasons())
		}
	}
	requests, failed := r.Totals()
	fmt.Fprintf(w, "%d requests, %d failed, in %s (%.0f/s)\n", requests, failed, r.Took.Round(100*time.Millisecond), float64(requests)/r.Took.Seconds())
}

// readyColumn returns how many groups were ready, e.g. "3-5".
func (row Row) readyColumn() string {
	switch {
	case row.MostReady == 0:
		return "-"
	case row.LeastReady == row.MostReady:
		return strconv.Itoa(row.MostReady)
	default:
		return fmt.Sprintf("%d-%d", row.LeastReady, row.MostReady)
	}
}

// shareColumn returns the shares, measured and wanted, e.g. "vllm 75.1 (75), vllm-abc 24.9 (25)".
func (row Row) shareColumn() string {
	sides := maps.Clone(row.Shares)
	maps.Copy(sides, row.Want)
	cells := make([]string, 0, len(sides))
	for _, side := range slices.Sorted(maps.Keys(sides)) {
		cell := fmt.Sprintf("%s %.1f", side, row.Shares[side])
		if row.Want != nil {
			cell += fmt.Sprintf(" (%g)", row.Want[side])
		}
		cells = append(cells, cell)
	}
	return strings.Join(cells, ", ")
}
