// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/plugin/host"
	"github.com/lockstep-rollouts/lockstep/plugin/kruise"
	batchrelease "github.com/lockstep-rollouts/lockstep/plugin/kruise/batchrelease/host"
)

// driverOfHosts follows the help of each host.
const driverOfHosts = `

The driver runs inside this process, or is a "lockstep serve" at --driver. With --namespace only that namespace is watched.`

func newKruiseCommand(o *connect.Options) *cobra.Command {
	return newHostCommand(o, kruise.Run, &cobra.Command{
		Use:   "kruise",
		Short: "Let Kruise Rollouts release workloads through RolloutTargets",
		Long: `Reconcile RolloutTargets, through which unmodified Kruise Rollouts releases workloads, until SIGINT or SIGTERM.
Kruise's manager needs the flag --filter-workload-type=false.` + driverOfHosts,
	})
}

func newBatchReleaseCommand(o *connect.Options) *cobra.Command {
	return newHostCommand(o, batchrelease.Run, &cobra.Command{
		Use:   "batchrelease",
		Short: "Run Kruise Rollouts' BatchRelease objects without Kruise's manager",
		Long: `Reconcile Kruise Rollouts' BatchReleases of workloads, in a cluster with their CRD but without Kruise's manager: that
manager panics on such an object, and beside it this program refuses to start.` + driverOfHosts,
	})
}

// newHostCommand completes the command of a host that runs in a cluster.
func newHostCommand(
	o *connect.Options, run func(context.Context, *rest.Config, host.Settings) error, cmd *cobra.Command,
) *cobra.Command {
	var dial connect.Flags
	var s host.Settings
	cmd.Example = "  lockstep " + cmd.Use + "\n  lockstep " + cmd.Use + " --leader-elect --health-address :8081\n  lockstep " + cmd.Use +
		" --driver dns:///lockstep.lockstep-system.svc:9443 --tls-cert tls.crt --tls-key tls.key --tls-ca ca.crt"
	cmd.Args = noArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return runHost(cmd.Context(), o, &dial, s, run) }
	flags := cmd.Flags()
	dial.AddAsDriver(flags)
	flags.BoolVar(&s.LeaderElection, "leader-elect", false, leaderElectUsage)
	flags.StringVar(&s.LeaderElectionNamespace, "leader-elect-namespace", "", leaseNamespaceUsage)
	flags.StringVar(&s.MetricsAddress, "metrics-address", "", metricsUsage)
	flags.StringVar(&s.HealthAddress, "health-address", "", healthUsage)
	return cmd
}

// runHost runs a host until ctx ends or a driver inside this process fails.
func runHost(
	ctx context.Context, o *connect.Options, dial *connect.Flags, s host.Settings,
	run func(context.Context, *rest.Config, host.Settings) error,
) error {
	if err := dial.Check(o); err != nil {
		return err
	}
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
		o.Metrics = metrics.Registry
		if driver, err = connect.Inside(ctx, o); err != nil {
			return err
		}
	} else if driver = dial.DialUntilReached(ctx, logger, func(error) {}); driver == nil {
		return nil
	}
	s.Driver, s.Logger, s.Namespace, s.ProtectMetrics = driver, logger, o.Namespace, o.ProtectMetrics(logger)
	err = run(driver.Context, config, s) //nolint:contextcheck // The link's context is made from ctx.
	if err == nil && ctx.Err() == nil {
		err = context.Cause(driver.Context) //nolint:contextcheck // As above.
	}
	return errors.Join(err, driver.Close())
}
