// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// result is the result of a job.
type result struct {
	job  job
	took time.Duration
	// passed and failed are tests and subtests, skipped only tests.
	passed, failed int
	// failures are the names of the failed tests, each with its last messages below it.
	failures []string
	// writes is the number of requests that wrote to the suite's API servers.
	writes int
	// over says how the suite exceeds its budget. It is empty for a suite within its budget.
	over string
	// missing are tests of the requirement table that did not complete.
	missing []string
	err     error
}

// read counts the tests in the output of `go test -json`.
func (r *result) read(events string) {
	f, err := os.Open(events)
	if err != nil {
		r.err = errors.Join(r.err, err)
		return
	}
	defer func() { _ = f.Close() }()
	passed, messages := map[string]bool{}, map[string][]string{}
	running := map[string]bool{} // packages, and tests
	for decoder := json.NewDecoder(f); ; {
		var event struct{ Action, Package, Test, Output string }
		if err := decoder.Decode(&event); err != nil {
			if !errors.Is(err, io.EOF) {
				r.err = errors.Join(r.err, fmt.Errorf("read the events of %s: %w", r.job, err))
			}
			break
		}
		switch name := event.Package + " " + event.Test; event.Action {
		case "start", "run":
			running[name] = true
		case "pass", "fail", "skip":
			delete(running, name)
		}
		switch {
		case event.Test == "":
		case event.Action == "pass":
			r.passed++
			passed[event.Test] = true
		case event.Action == "fail":
			r.failed++
			r.failures = append(r.failures, strings.Join(append([]string{event.Package[strings.LastIndex(event.Package, "/")+1:] + "." + event.Test},
				messages[event.Test]...), "\n  "))
			passed[event.Test] = true
		case event.Action == "output" && messageLine.MatchString(event.Output):
			last := messages[event.Test]
			messages[event.Test] = append(last[max(0, len(last)-3):], shorten(event.Output))
		}
	}
	switch {
	case r.err != nil:
	case len(running) > 0: // go tool succeeds although a signal has killed the program that it runs
		r.err = fmt.Errorf("killed while these ran: %s", strings.Join(slices.Sorted(maps.Keys(running)), ", "))
	case r.passed+r.failed == 0:
		r.err = errors.New("no test ran")
	}
	for _, name := range r.job.must {
		if !passed[name] {
			r.missing = append(r.missing, name)
		}
	}
}

// messageLine matches a line of a test's output that begins a message: it names the line of the test.
var messageLine = regexp.MustCompile(`^\s+\w+\.go:\d+: `)

// shorten returns the beginning of a line. The end of the output, which is all that some CI shows, says what failed.
func shorten(line string) string {
	line = strings.TrimSpace(line)
	if len(line) > 400 {
		line = strings.ToValidUTF8(line[:400], "") + "..."
	}
	return line
}

// readWrites sums the numbers that the suite's clusters wrote to a file. Without a cluster there is none.
func (r *result) readWrites(file string) {
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	for line := range strings.FieldsSeq(string(raw)) {
		n, invalid := strconv.Atoi(line)
		r.writes, err = r.writes+n, errors.Join(err, invalid)
	}
	r.err = errors.Join(r.err, err)
}

// budget bounds the cost of a suite. Time is not bounded: it depends on the machine, and tests and writes are what takes it.
type budget struct {
	tests  int // with subtests
	writes int // that reach API servers
}

// exceeded says how a result exceeds the budget. It returns "" for a result within it.
func (b budget) exceeded(r result) string {
	tests := r.passed + r.failed
	if b == (budget{}) {
		return ""
	}
	switch remedy := "let the new test replace another one, or run it in test-all: see " + tableFile; {
	case tests > b.tests:
		return fmt.Sprintf("%d tests are more than its budget of %d: %s", tests, b.tests, remedy)
	case r.writes == 0 && b.writes > 0:
		return "its writes were not counted, so that the budget can't be judged: the suite's log says why"
	case r.writes > b.writes:
		return fmt.Sprintf("%d writes are more than its budget of %d: %s", r.writes, b.writes, remedy)
	}
	return ""
}

// report prints a row per job, the failed tests, and the number of all tests. It returns an error if anything failed.
func report(out io.Writer, results []result) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nsuite\ttime\tpassed\tfailed\twrites\tresult")
	passed, failed, bad := 0, 0, []string{}
	for _, r := range results {
		status := "ok"
		if r.err != nil || r.failed > 0 || len(r.missing) > 0 || r.over != "" {
			status = "FAILED"
			bad = append(bad, r.job.String())
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%s\n", r.job, r.took.Round(time.Second), r.passed, r.failed, r.writes, status)
		passed, failed = passed+r.passed, failed+r.failed
	}
	_ = table.Flush()
	for _, r := range results {
		slices.Sort(r.failures)
		for _, name := range r.failures {
			fmt.Fprintf(out, "%s: failed: %s\n", r.job, name)
		}
		for _, name := range r.missing {
			fmt.Fprintf(out, "%s: did not run, but is in the table of %s: %s\n", r.job, tableFile, name)
		}
		if r.over != "" {
			fmt.Fprintf(out, "%s: %s\n", r.job, r.over)
		}
		if r.err != nil && r.failed == 0 {
			fmt.Fprintf(out, "%s: %v\n", r.job, r.err)
		}
	}
	fmt.Fprintf(out, "%d passed, %d failed\n", passed, failed)
	if len(bad) > 0 {
		return fmt.Errorf("failed: %s", strings.Join(bad, ", "))
	}
	return nil
}

// reportLeftOut prints what did not run on this machine. In a GitHub workflow each line is a warning, which the page of the run shows.
func reportLeftOut(out io.Writer, lines []string) {
	prefix := ""
	if os.Getenv("GITHUB_ACTIONS") == "true" {
		prefix = "::warning title=Not tested::"
	}
	for _, line := range lines {
		fmt.Fprintln(out, prefix+line)
	}
}
