// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/cli/output"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	"github.com/lockstep-rollouts/lockstep/internal/server"
	"github.com/lockstep-rollouts/lockstep/lwsdriver"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/argo"
	"github.com/lockstep-rollouts/lockstep/plugin/host"
	"github.com/lockstep-rollouts/lockstep/plugin/kruise"
	batchrelease "github.com/lockstep-rollouts/lockstep/plugin/kruise/batchrelease/host"
)

// Program is one run of lockstep.
type Program struct {
	// Args are the arguments without the program's name.
	Args []string
	// Stdout gets results, Stderr logs and errors.
	Stdout, Stderr io.Writer
	// NewDriver makes the engine.
	NewDriver connect.NewDriver
}

// Run runs the program until it returns, ctx ends, or SIGINT or SIGTERM arrives, and returns the exit code, one of
// exit.Meanings. A second signal ends the process at once.
func (p *Program) Run(ctx context.Context) int {
	o := &connect.Options{Stdout: p.Stdout, Stderr: p.Stderr, NewDriver: p.NewDriver, Options: lwsdriver.Options{Version: buildVersionOf()}}
	err := p.dispatch(ctx, o)
	if err != nil {
		if _, ok := output.Terminal(p.Stderr); ok && exit.Code(err) == exit.Interrupted {
			// The terminal has written ^C.
			_, _ = fmt.Fprintln(p.Stderr)
		}
		// An error may quote text of others, with characters that a terminal obeys.
		_, _ = fmt.Fprintf(p.Stderr, "lockstep: %s\n", view.Printable(err.Error()))
	}
	return exit.Code(err)
}

// dispatch runs as a plugin if a host launched this process, and otherwise the command of the arguments. Lockstep's own hosts come first:
// one that is itself a plugin passes on the cookie that it was launched with.
func (p *Program) dispatch(ctx context.Context, o *connect.Options) error {
	serve := servePlugin
	switch {
	case plugin.IsPlugin():
	case argo.StartedAs() != argo.RoleNone:
		serve = serveArgo
	default:
		ctx, stop := withSignals(ctx, os.Interrupt, syscall.SIGTERM)
		defer stop()
		root := newRootCommand(o) //nolint:contextcheck // ExecuteContext hands ctx to the command.
		root.SetArgs(p.Args)
		return root.ExecuteContext(ctx) //nolint:wrapcheck // The errors are those of this package's commands.
	}
	// A terminal sends SIGINT to the host as well, which ends its plugins itself.
	ctx, stop := withSignals(ctx, syscall.SIGTERM)
	defer stop()
	return serve(ctx, o, p.Args)
}

// withSignals ends ctx at the first of the signals and then restores their default action.
func withSignals(ctx context.Context, signals ...os.Signal) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, signals...)
	// The second signal has its default action, for a command that hangs in its end.
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

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
	// A plugin has no endpoint for metrics.
	options := append(server.Interceptors(logger, nil), server.LocalUser(o.Whoami())...) //nolint:contextcheck // A call has its own.
	return connect.RunBeside(ctx, driver, func(ctx context.Context) error {
		return plugin.Serve(ctx, driver, driver, plugin.ServeOptions{Logger: logger, GRPC: options})
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
	var err error
	if o.Logger, err = o.NewLogger(); err != nil {
		return err
	}
	config, err := o.RESTConfig()
	if err != nil {
		return err
	}
	// controller-runtime serves this registry at the host's endpoint.
	o.Metrics = metrics.Registry
	driver, err := dial.Reach(ctx, o)
	if err != nil {
		return err
	}
	s.Driver, s.Logger, s.Namespace, s.ProtectMetrics = driver, o.Logger, o.Namespace, o.ProtectMetrics(o.Logger)
	err = run(driver.Context, config, s) //nolint:contextcheck // The link's context is made from ctx.
	// run returns nil if its context ends, also when a driver inside has failed.
	if err == nil && ctx.Err() == nil {
		err = context.Cause(driver.Context) //nolint:contextcheck // As above.
	}
	return errors.Join(err, driver.Close())
}
