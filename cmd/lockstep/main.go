// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Command lockstep rolls out LeaderWorkerSet workloads in whole groups of pods: as a plugin of a progressive-delivery
// controller, as a gRPC server, or by hand. Without arguments it prints what it does.
package main

import (
	"context"
	"os"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/lockstep-rollouts/lockstep/internal/cli"
	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/server"
	"github.com/lockstep-rollouts/lockstep/lwsdriver"
)

func main() {
	program := cli.Program{Args: os.Args[1:], Stdout: os.Stdout, Stderr: os.Stderr, NewDriver: newDriver}
	os.Exit(program.Run(context.Background()))
}

// newDriver makes the driver for LeaderWorkerSet.
func newDriver(config *rest.Config, settings connect.Settings) (server.Driver, error) {
	opts := []lwsdriver.Option{
		lwsdriver.WithLogger(settings.Logger), lwsdriver.WithVersion(settings.Version), lwsdriver.WithCanaryMetadata(settings.Metadata...),
		lwsdriver.WithMaxGroupsInFlight(settings.MaxGroupsInFlight), lwsdriver.WithMaxProgressDeadline(settings.MaxProgressDeadline),
	}
	if settings.Namespace != "" {
		opts = append(opts, lwsdriver.WithNamespace(settings.Namespace))
	}
	if settings.Workload != (types.NamespacedName{}) {
		opts = append(opts, lwsdriver.WithWorkload(settings.Workload))
	}
	if settings.ReadOnly {
		opts = append(opts, lwsdriver.WithReadOnly())
	}
	if settings.Silent {
		opts = append(opts, lwsdriver.WithoutEvents())
	}
	if settings.ProbeHostNetwork {
		opts = append(opts, lwsdriver.WithHostNetworkProbes())
	}
	if settings.LeaseNamespace != "" {
		opts = append(opts, lwsdriver.WithLeaderElection(settings.LeaseNamespace))
	}
	if settings.Metrics != nil {
		opts = append(opts, lwsdriver.WithMetrics(settings.Metrics))
	}
	if settings.Recorder != nil {
		opts = append(opts, lwsdriver.WithDecisions(settings.Recorder.Record))
	}
	return lwsdriver.New(config, opts...)
}
