// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/lockstep-rollouts/lockstep/internal/server"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/replay"
)

// NewDriver makes the engine for the cluster that config reaches. It must be quick: caches fill in Run.
type NewDriver func(config *rest.Config, settings Settings) (server.Driver, error)

// Settings is what the command line decides about the engine.
type Settings struct {
	// Logger is never nil for NewDriver.
	Logger *slog.Logger
	// Namespace is the only namespace to serve. Empty: all.
	Namespace string
	// Workload is the only workload to work on. Zero: all.
	Workload types.NamespacedName
	// ReadOnly is true when nothing must be written.
	ReadOnly bool
	// Silent is true when another driver writes the events on the same workloads.
	Silent bool
	// Version is the program's version.
	Version string
	// Recorder gets the engine's decisions. Nil: they are not recorded.
	Recorder *replay.Recorder
	// Metrics is where the engine registers its metrics. Nil: nowhere.
	Metrics prometheus.Registerer
}

// Driver makes the engine that the flags select.
func (o *Options) Driver(logger *slog.Logger) (server.Driver, error) {
	config, err := o.RESTConfig()
	if err != nil {
		return nil, err
	}
	settings := o.Settings
	settings.Logger = logger
	if settings.Recorder == nil && o.record != "" {
		// It is closed when the process ends, like the driver.
		file, err := os.OpenFile(o.record, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open --record: %w", err)
		}
		settings.Recorder = &replay.Recorder{To: file}
	}
	driver, err := o.NewDriver(config, settings)
	if err != nil {
		return nil, fmt.Errorf("make driver: %w", err)
	}
	return driver, nil
}
