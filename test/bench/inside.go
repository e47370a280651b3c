// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// measureInside runs lwsdriver's own benchmark, which calls without a socket in between, and reads its figures.
func (b *bench) measureInside(ctx context.Context) ([]call, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^BenchmarkCalculateBatchContext$",
		"-benchtime", strconv.Itoa(b.calls)+"x", "./lwsdriver")
	cmd.Dir = b.root
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	var all []call
	for line := range strings.Lines(string(out)) {
		if f, ok := parseBenchmark(line); ok {
			all = append(all, f)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s printed no figures:\n%s", cmd, out)
	}
	return all, nil
}

var (
	benchmarkName = regexp.MustCompile(`^BenchmarkCalculateBatchContext/groups=(true|false)/churn=(\d+)`)
	benchmarkUnit = regexp.MustCompile(`([0-9.e+-]+) (clock-p50|clock-p99|cpu-p50)-ms`)
)

// parseBenchmark reads one line of go test's output.
func parseBenchmark(line string) (call, bool) {
	name := benchmarkName.FindStringSubmatch(line)
	if name == nil {
		return call{}, false
	}
	f := call{groups: name[1] == "true"}
	f.churn, _ = strconv.ParseFloat(name[2], 64)
	into := map[string]*float64{"clock-p50": &f.p50, "clock-p99": &f.p99, "cpu-p50": &f.cpu}
	for _, unit := range benchmarkUnit.FindAllStringSubmatch(line, -1) {
		*into[unit[2]], _ = strconv.ParseFloat(unit[1], 64)
	}
	return f, true
}
