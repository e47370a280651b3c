// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"log/slog"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/plugin/host"
	"github.com/lockstep-rollouts/lockstep/plugin/kruise"
)

const kruiseAbout = `Reconcile RolloutTargets, through which unmodified Kruise Rollouts releases workloads, until SIGINT or SIGTERM.
Kruise's manager needs the flag --filter-workload-type=false.

The driver runs inside this process, or is a "lockstep serve" at --driver. With --namespace only that namespace is watched.
`

const kruiseExample = `  lockstep kruise
  lockstep kruise --leader-elect --health-address :8081
  lockstep kruise --driver dns:///lockstep.lockstep-system.svc:9443 --tls-cert tls.crt --tls-key tls.key --tls-ca ca.crt`

func newKruiseCommand(o *connect.Options) *cobra.Command {
	var dial connect.Flags
	var run host.Settings
	cmd := &cobra.Command{
		Use:     "kruise",
		Short:   "Let Kruise Rollouts release workloads through RolloutTargets",
		Long:    kruiseAbout,
		Example: kruiseExample,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runKruise(cmd.Context(), o, &dial, run)
		},
	}
	flags := cmd.Flags()
	dial.AddAsDriver(flags)
	addHostFlags(flags, &run)
	return cmd
}

// addHostFlags adds the flags of hosts that run in a cluster.
func addHostFlags(flags *pflag.FlagSet, s *host.Settings) {
	flags.BoolVar(&s.LeaderElection, "leader-elect", false, leaderElectUsage)
	flags.StringVar(&s.LeaderElectionNamespace, "leader-elect-namespace", "", "namespace of the Lease (default: the pod's own)")
	flags.StringVar(&s.MetricsAddress, "metrics-address", "", metricsUsage)
	flags.StringVar(&s.HealthAddress, "health-address", "", "host:port of plain HTTP with /healthz and /readyz (default: off)")
}

// runKruise runs the controller until ctx ends or a driver inside this process fails.
func runKruise(ctx context.Context, o *connect.Options, dial *connect.Flags, run host.Settings) error {
	if err := dial.Check(o); err != nil {
		return err
	}
	inside := func(*slog.Logger) (*connect.Link, error) {
		o.Metrics = metrics.Registry
		return connect.Inside(ctx, o)
	}
	return runHost(ctx, o, dial, &run, inside, func(ctx context.Context, config *rest.Config, driver *connect.Link) error {
		run.Driver = driver
		return kruise.Run(ctx, config, run)
	})
}

// runHost runs a host until ctx ends or its driver does: the one at the flags' address, or the one that start returns.
func runHost(
	ctx context.Context, o *connect.Options, dial *connect.Flags, settings *host.Settings,
	start func(*slog.Logger) (*connect.Link, error), run func(context.Context, *rest.Config, *connect.Link) error,
) error {
	logger, err := o.NewLogger()
	if err != nil {
		return err
	}
	config, err := o.RESTConfig()
	if err != nil {
		return err
	}
	var driver *connect.Link
	if dial.Address == "" {
		if driver, err = start(logger); err != nil {
			return err
		}
	} else if driver = dial.DialUntilReached(ctx, logger, func(error) {}); driver == nil {
		return nil
	}
	settings.Logger, settings.Namespace, settings.ProtectMetrics = logger, o.Namespace, o.ProtectMetrics(logger)
	err = run(driver.Context, config, driver) //nolint:contextcheck // The link's context is made from ctx.
	if err == nil && ctx.Err() == nil {
		err = context.Cause(driver.Context) //nolint:contextcheck // As above.
	}
	return errors.Join(err, driver.Close())
}
