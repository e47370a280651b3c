// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, "run:", err)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "run:", err)
		os.Exit(1)
	}
}

// errUsage is wrapped by errors in the command line.
var errUsage = errors.New("usage")

// config is the command line.
type config struct {
	level  level
	count  int
	run    string
	side   int
	matrix bool
	suites []suite
	// leftOut are suites and tests that this machine can't run, and why.
	leftOut []string
}

func parse(args []string, stderr io.Writer) (config, error) {
	c := config{level: levelAll}
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Func("level", "which tests of the requirement table: smoke, test or test-all (default: test-all)", func(name string) error {
		found, known := levels[name]
		if !known {
			return errors.New("want smoke, test or test-all")
		}
		c.level = found
		return nil
	})
	flags.IntVar(&c.count, "count", 1, "number of runs of each test")
	flags.StringVar(&c.run, "run", "", "only tests whose names match")
	flags.IntVar(&c.side, "side-by-side", 2, "number of suites that run concurrently")
	without := flags.String("without", "", "a suite that is left out")
	flags.BoolVar(&c.matrix, "matrix", false, "then run the matrix of other versions")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return c, err
		}
		return c, fmt.Errorf("%w: %w", errUsage, err)
	}
	var err error
	if c.suites, c.leftOut, err = find(flags.Args()); err != nil {
		return c, fmt.Errorf("%w: %w", errUsage, err)
	}
	if *without != "" {
		i := slices.IndexFunc(c.suites, func(s suite) bool { return s.name == *without })
		if i < 0 {
			return c, fmt.Errorf("%w: -without %s: it is not one of the suites", errUsage, *without)
		}
		c.suites = slices.Delete(slices.Clone(c.suites), i, i+1)
	}
	if c.run != "" {
		if c.level != levelAll {
			return c, fmt.Errorf("%w: -run and -level exclude each other", errUsage)
		}
		for i := range c.suites {
			c.suites[i].run = c.run
		}
	}
	return c, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	c, err := parse(args, stderr)
	if err != nil {
		return err
	}
	table, err := readTable(".")
	if err != nil {
		return err
	}
	jobs := jobsOf(c, table)
	r, err := newRunner(ctx, c, stdout, stderr)
	if err != nil {
		return err
	}
	defer r.close()
	if err := r.build(ctx, jobs); err != nil {
		return err
	}
	results := r.runAll(ctx, jobs)
	err = report(stdout, results)
	reportLeftOut(stdout, c.leftOut)
	return err
}

// jobsOf returns the jobs: the suites at the level, then the matrix.
func jobsOf(c config, table []requirement) []job {
	var jobs []job
	for _, s := range restrict(c.suites, table, c.level) {
		jobs = append(jobs, job{suite: s, must: mustRun(s, table, c)})
	}
	if !c.matrix {
		return jobs
	}
	for _, course := range matrix {
		suites, _, err := find(course.suites)
		if err != nil {
			panic(err) // a defect of matrix
		}
		for _, s := range restrict(suites, table, course.level) {
			jobs = append(jobs, job{suite: s, versions: course.versions, must: s.tests(table, course.level)})
		}
	}
	return jobs
}

// mustRun returns the tests that must not be missing: those of the table at the level, if the whole suite runs, but for those that this
// machine leaves out.
func mustRun(s suite, table []requirement, c config) []string {
	if c.run != "" || slices.Contains(parts, s.name) {
		return nil
	}
	return slices.DeleteFunc(s.tests(table, c.level), func(name string) bool { return slices.Contains(s.demanding, name) })
}
