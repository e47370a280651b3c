// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockstep-rollouts/lockstep/internal/server"
	"github.com/lockstep-rollouts/lockstep/plugin"
)

// stopGrace is how long a process that is ending waits for its driver. Whatever the driver was doing is durable and
// goes on in the next one; client-go may sleep through the end of its context for a second and more while the API
// server is away, and go-plugin kills a plugin that takes two.
const stopGrace = 500 * time.Millisecond

// servePlugin serves the driver to the host that started this process. The root command's flags apply, except
// --log-format: the host reads one format.
func servePlugin(ctx context.Context, o *options, args []string) error {
	if err := o.parsePluginArgs(args); err != nil {
		return err
	}
	level, err := o.level()
	if err != nil {
		return err
	}
	logger := captureKlog(slog.New(plugin.NewLogHandler(o.stderr, level)))
	driver, err := o.driver(logger, nil)
	if err != nil {
		return err
	}
	return runBeside(ctx, driver, func(ctx context.Context) error {
		return plugin.Serve(ctx, driver, driver,
			plugin.WithServeLogger(logger),
			plugin.WithServerOptions(server.Interceptors(logger, nil)...))
	})
}

// parsePluginArgs reads the flags that a host gave its plugin. more adds the flags of one kind of plugin.
func (o *options) parsePluginArgs(args []string, more ...func(*pflag.FlagSet)) error {
	flags := pflag.NewFlagSet("lockstep (plugin)", pflag.ContinueOnError)
	flags.SetOutput(o.stderr)
	o.addFlags(flags)
	for _, add := range more {
		add(flags)
	}
	if err := flags.Parse(args); err != nil {
		return usageErrorf("plugin arguments: %w", err)
	}
	if flags.NArg() > 0 {
		return usageErrorf("plugin arguments: %q is no flag; a plugin takes no command", flags.Arg(0))
	}
	return nil
}

// runBeside runs serve and, beside it, the driver, which it ends once serve has returned: calls in flight need its caches
// and its work to come to their end. What only waits is told to stop as soon as ctx has ended. If the driver fails, serve
// ends too.
func runBeside(ctx context.Context, driver server.Driver, serve func(context.Context) error) error {
	serving, stopServing := context.WithCancel(ctx)
	defer stopServing()
	stopDraining := context.AfterFunc(serving, driver.Drain)
	defer stopDraining()
	running, stopRunning := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRunning()
	ran := make(chan error, 1)
	go func() {
		err := within(stopGrace, driver.Run)(running)
		if err != nil && running.Err() == nil {
			err = fmt.Errorf("run driver: %w", err)
		} else {
			err = nil
		}
		ran <- err
		stopServing()
	}()
	err := serve(serving)
	stopRunning()
	return errors.Join(err, <-ran)
}

// within returns run, but for the process that ends: it returns nil once ctx has ended for the grace, although run
// still runs.
func within(grace time.Duration, run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		ran := make(chan error, 1)
		go func() { ran <- run(ctx) }()
		select {
		case err := <-ran:
			return err
		case <-ctx.Done():
		}
		select {
		case err := <-ran:
			return err
		case <-time.After(grace):
			return nil
		}
	}
}

// pluginArgs are the flags of this process for a driver that it starts as a plugin, whose log is this process's too.
func (o *options) pluginArgs() []string {
	args := []string{"--log-level", o.logLevel}
	for _, flag := range []struct{ name, value string }{
		{"--kubeconfig", o.kubeconfig}, {"--context", o.kubeContext}, {"--namespace", o.namespace},
	} {
		if flag.value != "" {
			args = append(args, flag.name, flag.value)
		}
	}
	return args
}
