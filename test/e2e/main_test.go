// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// figuresEnv names a file that the figures are written to as well, for runs without -v.
const figuresEnv = "LOCKSTEP_E2E_FIGURES"

// parallelTests is the number of parallel tests. A third of the time they wait, for backoffs, deadlines and slow groups.
const parallelTests = 3

func TestMain(m *testing.M) {
	start := time.Now()
	code := suite.Main(m, parallelTests, cluster.WithAudit(), cluster.WithGatewayAPI(), cluster.WithNodes(16, nodeResources()))
	driver.Cleanup()
	figures.write(os.Stdout, time.Since(start))
	if path := os.Getenv(figuresEnv); path != "" {
		f, err := os.Create(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		figures.write(f, time.Since(start))
		_ = f.Close()
	}
	os.Exit(code)
}

// counts are the suite's figures.
type counts struct {
	releases, completed, rolledBack  atomic.Int64
	events, checks, violations, dips atomic.Int64
	disturbed, faults                atomic.Int64 // releases with faults, and the faults
}

var figures counts

func (c *counts) write(w io.Writer, took time.Duration) {
	fmt.Fprintf(w, "figures: %d releases started, %d completed, %d rolled back; %d RPCs; %d drivers started, %d killed\n",
		c.releases.Load(), c.completed.Load(), c.rolledBack.Load(), driver.Calls.Load(), driver.Starts.Load(), driver.Kills.Load())
	fmt.Fprintf(w, "figures: %d releases disturbed by %d faults at writes\n", c.disturbed.Load(), c.faults.Load())
	fmt.Fprintf(w, "figures: %d events observed, %d rule checks, %d violations, %d dips caused by LWS; %s\n",
		c.events.Load(), c.checks.Load(), c.violations.Load(), c.dips.Load(), took.Round(100*time.Millisecond))
}
