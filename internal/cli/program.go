// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/lockstep-rollouts/lockstep/internal/server"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/replay"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/argo"
)

// NewDriver makes the engine for the cluster that config reaches. It must be quick: caches fill in Run.
type NewDriver func(config *rest.Config, settings DriverSettings) (server.Driver, error)

// DriverSettings is what the command line decides about the engine.
type DriverSettings struct {
	// Logger is never nil.
	Logger *slog.Logger
	// Namespace is the only namespace to serve. Empty: all.
	Namespace string
	// Workload is the only workload to work on. Zero: all.
	Workload types.NamespacedName
	// ReadOnly is true when nothing must be written.
	ReadOnly bool
	// Silent is true when another driver writes the events on the same workloads.
	Silent bool
	// Version is the program's version.
	Version string
	// Recorder gets the engine's decisions. Nil: they are not recorded.
	Recorder *replay.Recorder
	// Metrics is where the engine registers its metrics. Nil: nowhere.
	Metrics prometheus.Registerer
}

// Program is one run of lockstep.
type Program struct {
	// Args are the arguments without the program's name.
	Args []string
	// Stdout gets what was asked for, Stderr logs and errors.
	Stdout, Stderr io.Writer
	// NewDriver makes the engine.
	NewDriver NewDriver
}

// Run runs the program until it is done, ctx has ended, or SIGINT or SIGTERM has come, and returns the exit code:
// 0 for success, 1 for a failed run, 2 for a wrong command line; commands document others of their own.
// After the first signal a second one ends the process at once.
func (p *Program) Run(ctx context.Context) int {
	o := &options{stdout: p.Stdout, stderr: p.Stderr, newDriver: p.NewDriver}
	err := p.dispatch(ctx, o)
	if err != nil {
		if _, ok := terminal(p.Stderr); ok && exitCode(err) == exitInterrupted {
			// The terminal has written ^C.
			_, _ = fmt.Fprintln(p.Stderr)
		}
		_, _ = fmt.Fprintf(p.Stderr, "lockstep: %v\n", err)
	}
	return exitCode(err)
}

// dispatch finds out which of the three ways of starting this is.
func (p *Program) dispatch(ctx context.Context, o *options) error {
	for _, mode := range pluginModes() {
		if mode.started() {
			// A terminal sends SIGINT to the host as well; the host decides what becomes of its plugins.
			ctx, stop := withSignals(ctx, syscall.SIGTERM)
			defer stop()
			return mode.serve(ctx, o, p.Args)
		}
	}
	ctx, stop := withSignals(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := newRootCommand(o)
	root.SetArgs(p.Args)
	return root.ExecuteContext(ctx) //nolint:wrapcheck // The errors are those of this package's commands.
}

// pluginMode is a way in which hosts start this binary.
type pluginMode struct {
	// started says whether such a host started this process.
	started func() bool
	// serve serves it until it is over. args hold flags only.
	serve func(ctx context.Context, o *options, args []string) error
}

// pluginModes are asked in this order. Lockstep's own comes first: a host that is itself a plugin of another passes
// on the cookie it was started with.
func pluginModes() []pluginMode {
	return []pluginMode{
		{started: plugin.IsPlugin, serve: servePlugin},
		{started: func() bool { return argo.StartedAs() != argo.RoleNone }, serve: serveArgo},
	}
}

// withSignals ends ctx at the first of the signals and then leaves them alone.
func withSignals(ctx context.Context, signals ...os.Signal) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, signals...)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
