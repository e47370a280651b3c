// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// stopGrace bounds the shutdown of a suite and its control plane.
const stopGrace = 30 * time.Second

// job is one suite on one set of versions.
type job struct {
	suite    suite
	versions cluster.Versions
	// must are the tests that must not be missing.
	must []string
}

func (j job) String() string {
	if given := j.versions.String(); given != "" {
		return j.suite.name + " (" + given + ")"
	}
	return j.suite.name
}

// runner runs jobs concurrently.
type runner struct {
	config config
	dir    string // of the binary and the tests' events; removed by close
	mu     sync.Mutex
	out    io.Writer
	log    io.Writer
}

// newRunner builds the lockstep binary that all suites share.
func newRunner(ctx context.Context, c config, out, log io.Writer) (*runner, error) {
	dir, err := os.MkdirTemp("", "lockstep-suites-")
	if err != nil {
		return nil, fmt.Errorf("create directory: %w", err)
	}
	r := &runner{config: c, dir: dir, out: out, log: log}
	build := exec.CommandContext(ctx, "go", "build", "-C", "..", "-trimpath", "-o", r.binary(), "./cmd/lockstep")
	if output, err := build.CombinedOutput(); err != nil {
		r.close()
		return nil, fmt.Errorf("build lockstep: %w\n%s", err, output)
	}
	return r, nil
}

func (r *runner) binary() string { return filepath.Join(r.dir, "lockstep") }

func (r *runner) close() { _ = os.RemoveAll(r.dir) }

// build builds the programs of all jobs' clusters before the first test.
func (r *runner) build(ctx context.Context, jobs []job) error {
	for _, j := range jobs {
		options := append(slices.Clone(j.suite.needs), cluster.WithVersions(j.versions), cluster.WithLog(r.log))
		if err := cluster.Build(ctx, r.log, options...); err != nil {
			return fmt.Errorf("build the cluster of %s: %w", j, err)
		}
	}
	return nil
}

// runAll returns the results of all jobs, in their order. It does not stop at a failure.
func (r *runner) runAll(ctx context.Context, jobs []job) []result {
	results := make([]result, len(jobs))
	var g errgroup.Group
	g.SetLimit(r.config.side)
	var quiet sync.RWMutex
	for i, j := range jobs {
		g.Go(func() error {
			turn := quiet.RLocker()
			if j.suite.alone {
				turn = &quiet
			}
			turn.Lock()
			defer turn.Unlock()
			results[i] = r.run(ctx, j, len(jobs) > 1 || r.config.level != levelAll)
			return nil
		})
	}
	_ = g.Wait() // the results have the failures
	return results
}

// run runs one job. It prints the job's whole output, or a line for each test with the name of the job.
func (r *runner) run(ctx context.Context, j job, brief bool) result {
	res := result{job: j}
	if ctx.Err() != nil {
		res.err = ctx.Err()
		return res
	}
	events, err := os.CreateTemp(r.dir, "events-")
	if err != nil {
		res.err = err
		return res
	}
	_ = events.Close()
	writes := events.Name() + ".writes"
	format, out := "standard-verbose", r.out
	if brief {
		format, out = "testname", &lineWriter{mu: &r.mu, w: r.out, prefix: j.String() + ": "}
	}
	cmd := exec.CommandContext(ctx, "go", r.arguments(j, format, events.Name())...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), driver.BinaryEnv+"="+r.binary(), cluster.WritesEnv+"="+writes)
	cmd.Env = append(cmd.Env, j.versions.Environment()...)
	// In its own process group the test binary gets an interrupt once, from the go command.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = stopGrace
	begin := time.Now()
	res.err = cmd.Run()
	res.took = time.Since(begin)
	res.read(events.Name())
	res.readWrites(writes)
	if r.config.level == levelTest && r.config.count == 1 {
		res.over = j.suite.budget.exceeded(res)
	}
	return res
}

// arguments returns the arguments of the go command, which runs gotestsum, which runs go test.
func (r *runner) arguments(j job, format, events string) []string {
	args := []string{"tool", "-modfile=" + filepath.Join("..", "tools", "test", "go.mod"), "gotestsum", "--format", format, "--format-hide-empty-pkg", "--jsonfile", events}
	args = append(args, "--packages="+strings.Join(j.suite.packages, " "), "--", "-tags", "e2e", "-vet", "off", "-p", "1", "-timeout", "90m",
		"-count", strconv.Itoa(r.config.count))
	switch {
	case j.suite.run != "":
		args = append(args, "-run", j.suite.run)
	case j.suite.only != nil:
		args = append(args, "-run", pattern(j.suite.only))
	case j.suite.apart != nil:
		args = append(args, "-skip", pattern(j.suite.apart))
	}
	return args
}

// lineWriter writes whole lines, each with a prefix.
type lineWriter struct {
	mu      *sync.Mutex
	w       io.Writer
	prefix  string
	partial []byte
}

func (l *lineWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.partial = append(l.partial, p...)
	for {
		line, rest, found := bytes.Cut(l.partial, []byte("\n"))
		if !found {
			return len(p), nil
		}
		if _, err := fmt.Fprintf(l.w, "%s%s\n", l.prefix, line); err != nil {
			return 0, err
		}
		l.partial = append([]byte(nil), rest...)
	}
}
