// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"github.com/lockstep-rollouts/lockstep/internal/access/review"
	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/cli/output"
	"github.com/lockstep-rollouts/lockstep/internal/server"
)

const serveAbout = `Serve the driver over gRPC until SIGINT or SIGTERM, with the health service and, on a unix socket, reflection. Unlike a
command, a server completes promotions and rollbacks without its caller.
A unix socket is accessible to this user only. The default is lockstep/lockstep.sock in $XDG_RUNTIME_DIR, or else in /run for
root and $TMPDIR/lockstep-UID/lockstep.sock for other users.

A TCP address needs TLS (--tls-cert and --tls-key). Each caller needs a bearer token for the audience "lockstep" or a
certificate of --client-ca, and a role in the workload's namespace: docs/permissions.md. With --authorization=AlwaysAllow
every caller may do everything: all users of this machine on loopback, and elsewhere everyone with a certificate of
--client-ca. Certificates are read again when they change. A connection lasts an hour, so that revoked certificates end.

With --leader-elect one of several servers with the same --namespace acts. Until a server leads, it refuses calls, and /readyz
names the cause. If a leader is lost, a standby acts 15 seconds after the last renewal, and completes what was requested.`

const serveExample = `  lockstep serve
  lockstep serve --listen 127.0.0.1:9443 --authorization=AlwaysAllow
  lockstep serve --listen :9443 --tls-cert tls.crt --tls-key tls.key --health-address :8081`

func newServeCommand(o *connect.Options) *cobra.Command {
	var serve server.Options
	var elect leaderElection
	authorization := authorizationKubernetes
	cmd := &cobra.Command{
		Use:     "serve",
		Short:   "Serve the driver over gRPC to hosts on this machine, or elsewhere with TLS",
		Long:    serveAbout,
		Example: serveExample,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := elect.set(o); err != nil {
				return err
			}
			serve.AlwaysAllow = authorization == authorizationAlwaysAllow
			if serve.UserQPS <= 0 {
				return exit.Usagef("--user-qps is %d: it must be more than 0", serve.UserQPS)
			}
			return runServe(cmd.Context(), o, serve)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&serve.Listen, "listen", defaultListen(os.Getenv, os.Getuid()),
		"address to listen on: unix:///path or host:port")
	flags.StringVar(&serve.TLSCert, "tls-cert", "", "PEM file with the server's certificate chain")
	flags.StringVar(&serve.TLSKey, "tls-key", "", "PEM file with its key")
	flags.StringVar(&serve.ClientCA, "client-ca", "", "PEM file with the CA of clients' certificates (default: clients need tokens)")
	flags.IntVar(&serve.UserQPS, "user-qps", server.DefaultUserQPS, "how many calls a second each user may make over TCP; the service accounts of a namespace are one")
	output.AddChoice(cmd, &authorization, "authorization", "", "who may call over TCP: with "+authorizationKubernetes+" the API server decides, with "+authorizationAlwaysAllow+" everyone may",
		authorizationKubernetes, authorizationAlwaysAllow)
	flags.StringVar(&serve.MetricsAddress, "metrics-address", "", metricsUsage)
	flags.StringVar(&serve.HealthAddress, "health-address", "", healthUsage)
	flags.BoolVar(&serve.Reflection, "reflection", false, "offer the reflection service over TCP, too")
	flags.BoolVar(&elect.on, "leader-elect", false, leaderElectUsage)
	flags.StringVar(&elect.namespace, "leader-elect-namespace", "", leaseNamespaceUsage)
	return cmd
}

// The values of --authorization.
const (
	authorizationKubernetes  = "Kubernetes"
	authorizationAlwaysAllow = "AlwaysAllow"
)

// The usages of flags that servers and hosts have.
const (
	leaderElectUsage    = "act only while holding a Lease: one of several replicas acts, the others stand by"
	leaseNamespaceUsage = "namespace of the Lease (default: the pod's own)"
	metricsUsage        = "host:port of /metrics: plain HTTP on loopback, otherwise HTTPS for users who may get the path /metrics (default: off)"
	healthUsage         = "host:port of plain HTTP with /healthz and /readyz (default: off)"
)

// leaderElection are the flags that elect one of several servers.
type leaderElection struct {
	on        bool
	namespace string
}

// ownNamespace is the file with the namespace of a pod.
const ownNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

func (e leaderElection) set(o *connect.Options) error {
	switch {
	case !e.on && e.namespace != "":
		return exit.Usagef("--leader-elect-namespace is for --leader-elect: set both")
	case !e.on:
		return nil
	}
	if o.LeaseNamespace = e.namespace; e.namespace == "" {
		raw, err := os.ReadFile(ownNamespace)
		if err != nil {
			return exit.Usagef("--leader-elect outside of a pod needs the namespace of the Lease: set --leader-elect-namespace")
		}
		o.LeaseNamespace = strings.TrimSpace(string(raw))
	}
	return nil
}

func runServe(ctx context.Context, o *connect.Options, serve server.Options) error {
	logger, err := o.NewLogger()
	if err != nil {
		return err
	}
	// A registry of its own keeps out the metrics that libraries register globally.
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	o.Metrics = registry
	config, err := o.RESTConfig()
	if err != nil {
		return err
	}
	driver, err := o.Driver(logger)
	if err != nil {
		return err
	}
	serve.Logger, serve.Registry = logger, registry
	if serve.AlwaysAllow {
		logger.Warn("calls over TCP are not authorized: --authorization=AlwaysAllow")
	} else if serve.Reviewer, err = review.New(config); err != nil {
		return err
	}
	serve.ProtectMetrics = o.ProtectMetrics(logger)
	s, err := server.New(ctx, driver, serve)
	if err != nil {
		return err
	}
	return connect.RunBeside(ctx, driver, s.Run)
}

// defaultListen returns a socket that the user may create: in their runtime directory, in /run for root, or else in a
// directory of their own under the temporary one.
func defaultListen(getenv func(string) string, uid int) string {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("lockstep-%d", uid))
	switch runtimeDir := getenv("XDG_RUNTIME_DIR"); {
	case filepath.IsAbs(runtimeDir):
		dir = filepath.Join(runtimeDir, "lockstep")
	case uid == 0:
		dir = "/run/lockstep"
	}
	return "unix://" + filepath.Join(dir, "lockstep.sock")
}

// noArgs refuses positional arguments, with a usage error.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return exit.Usagef("%s takes no argument, got %q", cmd.CommandPath(), args[0])
	}
	return nil
}
