// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/cli/output"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/argo"
)

// Program is one run of lockstep.
type Program struct {
	// Args are the arguments without the program's name.
	Args []string
	// Stdout gets what was asked for, Stderr logs and errors.
	Stdout, Stderr io.Writer
	// NewDriver makes the engine.
	NewDriver connect.NewDriver
}

// Run runs the program until it is done, ctx has ended, or SIGINT or SIGTERM has come, and returns the exit code:
// 0 for success, 1 for a failed run, 2 for a wrong command line; commands document others of their own.
// After the first signal a second one ends the process at once.
func (p *Program) Run(ctx context.Context) int {
	o := &connect.Options{Stdout: p.Stdout, Stderr: p.Stderr, NewDriver: p.NewDriver, Settings: connect.Settings{Version: version()}}
	err := p.dispatch(ctx, o)
	if err != nil {
		if _, ok := output.Terminal(p.Stderr); ok && exit.Code(err) == exit.Interrupted {
			// The terminal has written ^C.
			_, _ = fmt.Fprintln(p.Stderr)
		}
		_, _ = fmt.Fprintf(p.Stderr, "lockstep: %v\n", err)
	}
	return exit.Code(err)
}

// dispatch finds out which of the three ways of starting this is.
func (p *Program) dispatch(ctx context.Context, o *connect.Options) error {
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
	root := newRootCommand(o) //nolint:contextcheck // ExecuteContext hands ctx to the command.
	root.SetArgs(p.Args)
	return root.ExecuteContext(ctx) //nolint:wrapcheck // The errors are those of this package's commands.
}

// pluginMode is a way in which hosts start this binary.
type pluginMode struct {
	// started says whether such a host started this process.
	started func() bool
	// serve serves it until it is over. args hold flags only.
	serve func(ctx context.Context, o *connect.Options, args []string) error
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
