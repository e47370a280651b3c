// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/lockstep-rollouts/lockstep/internal/access/review"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/server"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/replay"
)

// NewDriver makes a driver for a cluster. It must return fast: Run fills the caches.
type NewDriver func(config *rest.Config, settings Settings) (server.Driver, error)

// Settings are those of a driver.
type Settings struct {
	// Logger is required.
	Logger *slog.Logger
	// Namespace is the only namespace to serve. Empty means all.
	Namespace string
	// Workload is the only workload to work on. Zero means all.
	Workload types.NamespacedName
	// ReadOnly makes it write nothing.
	ReadOnly bool
	// Silent makes it write no events, because another driver of the same workloads does.
	Silent bool
	// Version is the program's version.
	Version string
	// LeaseNamespace is the namespace of the Lease that elects one of several drivers. Empty means that it acts without an election.
	LeaseNamespace string
	// ProbeHostNetwork lets leaders on their node's network get warm-up and drain requests.
	ProbeHostNetwork bool
	// MaxGroupsInFlight limits the groups that all releases have in flight. 0: there is no limit.
	MaxGroupsInFlight int
	// MaxProgressDeadline is the longest progress deadline of a release.
	MaxProgressDeadline time.Duration
	// Recorder records the decisions. Nil means that none are recorded.
	Recorder *replay.Recorder
	// Metrics is where it registers its metrics. Nil means nowhere.
	Metrics prometheus.Registerer
	// Metadata are the prefixes of keys that canary_leader_metadata may have.
	Metadata []string
}

// Reviewer returns a reviewer of callers with the rights of the flags' kubeconfig.
func (o *Options) Reviewer() (*review.Reviewer, error) {
	config, err := o.RESTConfig()
	if err != nil {
		return nil, err
	}
	return review.New(config)
}

// ProtectMetrics returns what protects an endpoint of metrics beyond loopback, with the rights of the flags' kubeconfig.
func (o *Options) ProtectMetrics(logger *slog.Logger) func(http.Handler) (http.Handler, error) {
	return func(handler http.Handler) (http.Handler, error) {
		config, err := o.RESTConfig()
		if err != nil {
			return nil, err
		}
		return review.Protect(config, logger, handler)
	}
}

// Driver makes a driver with the options' settings.
func (o *Options) Driver(logger *slog.Logger) (server.Driver, error) {
	config, err := o.RESTConfig()
	if err != nil {
		return nil, err
	}
	settings := o.Settings
	settings.Logger = logger
	settings.Metadata = o.metadata
	if slices.Contains(o.metadata, "") {
		return nil, exit.Usagef("--canary-metadata-prefix must not be empty")
	}
	if settings.MaxGroupsInFlight < 0 {
		return nil, exit.Usagef("--max-groups-in-flight %d: want a number of groups, or 0 for no limit", settings.MaxGroupsInFlight)
	}
	if least := record.DefaultProgressDeadline; settings.MaxProgressDeadline < least {
		return nil, exit.Usagef("--max-progress-deadline %s: want at least %s, the default of policies", settings.MaxProgressDeadline, least)
	}
	if settings.Recorder == nil && o.record != "" {
		// The file stays open until the process ends, like the driver.
		file, err := replay.Open(o.record)
		if err != nil {
			return nil, fmt.Errorf("--record: %w", err)
		}
		settings.Recorder = &replay.Recorder{To: file}
	}
	driver, err := o.NewDriver(config, settings)
	if err != nil {
		return nil, fmt.Errorf("make driver: %w", err)
	}
	return driver, nil
}
