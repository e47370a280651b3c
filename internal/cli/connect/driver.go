// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"fmt"
	"log/slog"
	"net/http"
	"slices"

	"k8s.io/client-go/rest"

	"github.com/lockstep-rollouts/lockstep/internal/access/review"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/server"
	"github.com/lockstep-rollouts/lockstep/lwsdriver"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/replay"
)

// NewDriver makes a driver for a cluster. It must return fast: Run fills the caches.
type NewDriver func(*rest.Config, lwsdriver.Options) (server.Driver, error)

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

// Driver makes a driver.
func (o *Options) Driver(logger *slog.Logger) (server.Driver, error) {
	config, err := o.RESTConfig()
	if err != nil {
		return nil, err
	}
	options := o.Options
	options.Logger = logger
	// An empty prefix would allow every key of metadata.
	if slices.Contains(options.Limits.Metadata, "") {
		return nil, exit.Usagef("--canary-metadata-prefix must not be empty")
	}
	if options.MaxGroupsInFlight < 0 {
		return nil, exit.Usagef("--max-groups-in-flight %d: want a number of groups, or 0 for no limit", options.MaxGroupsInFlight)
	}
	// A smaller limit would refuse every policy without a deadline of its own.
	if least := record.DefaultProgressDeadline; options.Limits.ProgressDeadline < least {
		return nil, exit.Usagef("--max-progress-deadline %s: want at least %s, the default of policies", options.Limits.ProgressDeadline, least)
	}
	// A command that records has its own recorder.
	if options.Decided == nil && o.record != "" {
		// The file stays open until the process ends, like the driver.
		file, err := replay.Open(o.record)
		if err != nil {
			return nil, fmt.Errorf("--record: %w", err)
		}
		recorder := &replay.Recorder{To: file, Ended: func(err error) {
			logger.Error("recording stopped; the driver continues", "file", o.record, "error", err)
		}}
		options.Decided = recorder.Record
	}
	driver, err := o.NewDriver(config, options)
	if err != nil {
		return nil, fmt.Errorf("make driver: %w", err)
	}
	return driver, nil
}
