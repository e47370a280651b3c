// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"

	"github.com/spf13/pflag"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/server"
	"github.com/lockstep-rollouts/lockstep/plugin"
)

// servePlugin serves the driver to the host that launched this process. The root command's flags apply, except
// --log-format: the host reads one format.
func servePlugin(ctx context.Context, o *connect.Options, args []string) error {
	if err := parsePluginArgs(o, args); err != nil {
		return err
	}
	logger, err := o.NewPluginLogger()
	if err != nil {
		return err
	}
	driver, err := o.Driver(logger)
	if err != nil {
		return err
	}
	return connect.RunBeside(ctx, driver, func(ctx context.Context) error {
		return plugin.Serve(ctx, driver, driver,
			plugin.WithServeLogger(logger),
			plugin.WithServerOptions(append(server.Interceptors(logger, nil), append(server.LocalUser(o.Whoami()), server.Traces(driver))...)...)) //nolint:contextcheck // A call has its own.
	})
}

// parsePluginArgs parses the arguments of a plugin. more registers the flags of one kind of plugin.
func parsePluginArgs(o *connect.Options, args []string, more ...func(*pflag.FlagSet)) error {
	flags := pflag.NewFlagSet("lockstep (plugin)", pflag.ContinueOnError)
	flags.SetOutput(o.Stderr)
	o.AddFlags(flags)
	for _, add := range more {
		add(flags)
	}
	if err := flags.Parse(args); err != nil {
		return exit.Usagef("plugin arguments: %w", err)
	}
	if flags.NArg() > 0 {
		return exit.Usagef("plugin arguments: unexpected %q: a plugin takes flags only", flags.Arg(0))
	}
	return nil
}
