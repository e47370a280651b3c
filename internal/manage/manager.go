// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package manage

import (
	"fmt"
	"log/slog"
	"net/http"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// Settings say how a host runs.
type Settings struct {
	// Logger is required.
	Logger *slog.Logger
	// Namespace is the only one to look at. Empty: all.
	Namespace string
	// LeaderElection has one of several processes work, the one that holds a Lease in LeaderElectionNamespace (empty: the
	// pod's own).
	LeaderElection          bool
	LeaderElectionNamespace string
	// MetricsAddress and HealthAddress are host:port. Empty: not served.
	MetricsAddress, HealthAddress string
}

// A host writes a few times per batch, for all workloads at once. client-go's default of 5 a second would be felt.
const (
	queriesPerSecond = 50
	burst            = 100
)

// New makes the manager of a host. lease names the Lease of the leader; only narrows what is cached of some kinds.
func New(
	config *rest.Config, s Settings, lease string, scheme *runtime.Scheme, only map[client.Object]cache.ByObject,
) (manager.Manager, error) {
	logger := logr.FromSlogHandler(s.Logger.Handler())
	log.SetLogger(logger)
	config = rest.CopyConfig(config)
	if config.QPS == 0 {
		config.QPS, config.Burst = queriesPerSecond, burst
	}
	options := manager.Options{
		Scheme:                        scheme,
		Logger:                        logger,
		Cache:                         cache.Options{ByObject: only},
		Metrics:                       metricsserver.Options{BindAddress: orOff(s.MetricsAddress)},
		HealthProbeBindAddress:        orOff(s.HealthAddress),
		LeaderElection:                s.LeaderElection,
		LeaderElectionID:              lease,
		LeaderElectionNamespace:       s.LeaderElectionNamespace,
		LeaderElectionReleaseOnCancel: true,
	}
	if s.Namespace != "" {
		options.Cache.DefaultNamespaces = map[string]cache.Config{s.Namespace: {}}
	}
	m, err := manager.New(config, options)
	if err != nil {
		return nil, fmt.Errorf("make the controller's manager: %w", err)
	}
	if err := m.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return nil, fmt.Errorf("add health check: %w", err)
	}
	synced := func(req *http.Request) error {
		if !m.GetCache().WaitForCacheSync(req.Context()) {
			return fmt.Errorf("caches are not filled")
		}
		return nil
	}
	if err := m.AddReadyzCheck("caches", synced); err != nil {
		return nil, fmt.Errorf("add readiness check: %w", err)
	}
	return m, nil
}

// orOff is an address as controller-runtime takes it.
func orOff(address string) string {
	if address == "" {
		return "0"
	}
	return address
}
