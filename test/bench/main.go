// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Command bench measures Lockstep on a real control plane on this machine, beside LeaderWorkerSet's own rolling update of
// the same workload, and prints one table. Times depend on the machine: compare only figures of one run.
//
//	go run -C test ./bench [-reps 9] [-parts start,release,scale,fleet,hosts] [-o json]
//
// docs/benchmarks.md explains each figure.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer cancel()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// config has the flags.
type config struct {
	parts  map[string]bool
	reps   int
	starts int
	groups int
	churn  int
	calls  int
	fleet  int
	// storm is the number of workloads of which releasing are released at once.
	storm, releasing int
	output           string
}

const (
	// partHosts is the comparison with Kruise Rollouts.
	partHosts = "hosts"
	// partFleet is many workloads; storm and growth are its parts.
	partFleet = "fleet"
)

// parts are the measurements, in their order. Fleet and its parts are optional; hosts needs Kruise Rollouts, and takes as long
// as start, release and scale together.
var parts = []string{"start", "release", "storm", "scale", "growth", partFleet, partHosts}

func parse(args []string, stderr io.Writer) (config, error) {
	c := config{parts: map[string]bool{}}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&c.reps, "reps", 9, "releases with instantly ready pods, each beside a native rolling update; a third as many with a start-up time, and of each host")
	flags.IntVar(&c.starts, "starts", 11, "starts of the process")
	flags.IntVar(&c.groups, "groups", 1000, "groups of 8 pods at scale; a fifth of them is the canary's")
	flags.IntVar(&c.churn, "churn", 100, "pod changes per second at scale")
	flags.IntVar(&c.calls, "calls", 3000, "calls of CalculateBatchContext per figure")
	flags.StringVar(&c.output, "o", "text", "output: text or json")
	flags.IntVar(&c.fleet, "fleet", 50_000, "pods of the fleet")
	flags.IntVar(&c.storm, "storm", 1000, "workloads of the storm")
	flags.IntVar(&c.releasing, "releasing", 20, "workloads of the storm that are released at once")
	list := flags.String("parts", "start,release,scale", "what to measure, of "+strings.Join(parts, ","))
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	for part := range strings.SplitSeq(*list, ",") {
		if !slices.Contains(parts, part) {
			return c, fmt.Errorf("-parts: there is no %q: choose of %s", part, strings.Join(parts, ","))
		}
		c.parts[part] = true
	}
	if c.parts[partFleet] {
		c.parts["storm"], c.parts["growth"] = true, true
	}
	switch {
	case c.output != "text" && c.output != "json":
		return c, fmt.Errorf("-o %q: choose text or json", c.output)
	case c.reps < 1 || c.starts < 1 || c.groups < 10 || c.churn < 1 || c.calls < 100 || c.fleet < 1000:
		return c, fmt.Errorf("-reps and -starts must be at least 1, -groups 10, -churn 1, -calls 100 and -fleet 1000")
	}
	return c, nil
}

// run measures and prints. Progress is printed to stderr.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	c, err := parse(args, stderr)
	if err == flag.ErrHelp { //nolint:errorlint // returned as it is
		return nil
	}
	if err != nil {
		return err
	}
	b, err := newBench(ctx, c, stderr)
	if err != nil {
		return err
	}
	defer b.stop()
	r := &report{Machine: machine()}
	for _, part := range []struct {
		name    string
		measure func(context.Context, *report) error
	}{
		{"start", b.measureStart},
		{"release", b.measureRelease},
		{"storm", b.measureStorm},
		{"scale", b.measureScale},
		{"growth", b.measureGrowth},
		{partFleet, b.measureFleet},
		{partHosts, b.measureHosts},
	} {
		if !c.parts[part.name] {
			continue
		}
		b.logf("part %s", part.name)
		if part.name != partHosts { // it raises its own
			if err := b.renew(ctx); err != nil {
				return err
			}
		}
		if err := part.measure(ctx, r); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	r.judge()
	if c.output == "json" {
		return r.writeJSON(stdout)
	}
	return r.writeText(stdout)
}
