// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Command bench measures Lockstep on a real control plane on this machine, beside LeaderWorkerSet's own rolling update of
// the same workload, and prints one table. Times depend on the machine: compare only figures of one run.
//
//	go run -C test ./bench [-reps 9] [-parts start,release,scale,storm,fleet]
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
	divide int
	// starts of the process, groups at scale, of which a fifth is the canary's, pod changes per second there, and calls per figure.
	starts, groups, churn, calls int
	// storm is the number of workloads of which releasing are released at once.
	storm, releasing int
}

// part is one measurement.
type part struct {
	name    string
	measure func(*bench, context.Context, *report) error
}

// parts are in their order. The last two are optional.
var parts = []part{
	{"start", (*bench).measureStart},
	{"release", (*bench).measureRelease},
	{"scale", (*bench).measureScale},
	{"storm", (*bench).measureStorm},
	{"fleet", (*bench).measureFleet},
}

func partNames() string {
	names := make([]string, 0, len(parts))
	for _, part := range parts {
		names = append(names, part.name)
	}
	return strings.Join(names, ",")
}

func parse(args []string, stderr io.Writer) (config, error) {
	c := config{parts: map[string]bool{}}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&c.reps, "reps", 9, "releases with instantly ready pods, each beside a native rolling update; a third as many with a start-up time")
	flags.IntVar(&c.divide, "divide", 1, "how many times smaller everything else is, to try a part out")
	list := flags.String("parts", "start,release,scale", "what to measure, of "+partNames())
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	for name := range strings.SplitSeq(*list, ",") {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			return c, fmt.Errorf("-parts: there is no %q: choose of %s", name, partNames())
		}
		c.parts[name] = true
	}
	if c.reps < 1 || c.divide < 1 || c.divide > 10 {
		return c, fmt.Errorf("-reps must be at least 1, and -divide 1 to 10")
	}
	c.starts, c.groups, c.churn, c.calls = max(11/c.divide, 1), 1000/c.divide, 100, 3000/c.divide
	c.storm, c.releasing = 1000, 20
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
	for _, part := range parts {
		if !c.parts[part.name] {
			continue
		}
		b.logf("part %s", part.name)
		if err := b.renew(ctx); err != nil {
			return err
		}
		if err := part.measure(b, ctx, r); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return r.writeText(stdout)
}
