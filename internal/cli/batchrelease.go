// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/host"
	batchrelease "github.com/lockstep-rollouts/lockstep/plugin/kruise/batchrelease/host"
)

const batchReleaseAbout = `Reconcile Kruise Rollouts' BatchReleases of workloads, in a cluster with their CRD but without Kruise's manager: that
manager panics on such an object, and beside it this program refuses to start.

The driver is launched as a plugin (this program, or --driver-program), and when it ends, so does the host. Or it is a
"lockstep serve" at --driver. With --namespace only that namespace is watched.
`

const batchReleaseExample = `  lockstep batchrelease
  lockstep batchrelease --leader-elect --health-address :8081
  lockstep batchrelease --driver dns:///lockstep.lockstep-system.svc:9443 --tls-cert tls.crt --tls-key tls.key --tls-ca ca.crt`

var errDriverExited = errors.New("the driver plugin has exited")

// driverFlags choose a host's driver: one at an address, or a program to launch.
type driverFlags struct {
	connect.Flags
	program, sha256 string
}

func (f *driverFlags) addFlags(flags *pflag.FlagSet) {
	f.AddAsDriver(flags)
	flags.Lookup("driver").Usage = "driver to use: unix:///path, host:port or dns:///host:port (default: one launched as a plugin)"
	flags.StringVar(&f.program, "driver-program", "", "driver to launch as a plugin (default: this program)")
	flags.StringVar(&f.sha256, "driver-sha256", "", "with --driver-program: the expected checksum of the file")
}

func (f *driverFlags) checkFlags(o *connect.Options) error {
	switch {
	case f.Address != "" && f.program != "":
		return exit.Usagef("--driver and --driver-program exclude each other")
	case f.sha256 != "" && f.program == "":
		return exit.Usagef("--driver-sha256 needs --driver-program")
	default:
		return f.Check(o)
	}
}

func newBatchReleaseCommand(o *connect.Options) *cobra.Command {
	var driver driverFlags
	var run host.Settings
	cmd := &cobra.Command{
		Use:     "batchrelease",
		Short:   "Run Kruise Rollouts' BatchRelease objects without Kruise's manager",
		Long:    batchReleaseAbout,
		Example: batchReleaseExample,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runBatchRelease(cmd.Context(), o, &driver, run)
		},
	}
	driver.addFlags(cmd.Flags())
	addHostFlags(cmd.Flags(), &run)
	return cmd
}

// runBatchRelease runs the host until ctx ends or its driver exits.
func runBatchRelease(ctx context.Context, o *connect.Options, flags *driverFlags, run host.Settings) error {
	if err := flags.checkFlags(o); err != nil {
		return err
	}
	start := func(logger *slog.Logger) (*connect.Link, error) { return flags.launch(ctx, o, logger) }
	return runHost(ctx, o, &flags.Flags, &run, start, func(ctx context.Context, config *rest.Config, driver *connect.Link) error {
		run.Driver = driver
		return batchrelease.Run(ctx, config, run)
	})
}

// launch launches the driver as a plugin, with the flags of this process.
func (f *driverFlags) launch(ctx context.Context, o *connect.Options, logger *slog.Logger) (*connect.Link, error) {
	program := f.program
	if program == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program to launch it as the driver: %w", err)
		}
		program = self
	}
	opts := []plugin.Option{plugin.WithLogger(logger), plugin.WithArgs(o.PluginArgs()...)}
	if f.sha256 != "" {
		opts = append(opts, plugin.WithSHA256(f.sha256))
	}
	// The plugin outlives ctx until Close, so that calls in flight return first.
	client, err := plugin.Launch(context.WithoutCancel(ctx), program, opts...)
	if err != nil {
		return nil, err
	}
	logger.Info("driver started", "program", program, "name", client.Info().GetName(), "version", client.Info().GetVersion())
	running, stop := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-client.Exited():
			stop(errDriverExited)
		case <-running.Done():
		}
	}()
	return &connect.Link{Client: client, Context: running, Close: func() error {
		stop(nil)
		return client.Close()
	}}, nil
}
