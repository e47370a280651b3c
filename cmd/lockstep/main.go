// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Command lockstep rolls out LeaderWorkerSet workloads in whole groups of pods: as a plugin of a progressive-delivery
// controller, as a gRPC server, or by hand. Without arguments it prints what it does.
package main

import (
	"context"
	"os"

	"k8s.io/client-go/rest"

	"github.com/lockstep-rollouts/lockstep/internal/cli"
	"github.com/lockstep-rollouts/lockstep/internal/server"
	"github.com/lockstep-rollouts/lockstep/lwsdriver"
)

func main() {
	program := cli.Program{Args: os.Args[1:], Stdout: os.Stdout, Stderr: os.Stderr, NewDriver: newDriver}
	os.Exit(program.Run(context.Background()))
}

// newDriver makes the driver for LeaderWorkerSet.
func newDriver(config *rest.Config, options lwsdriver.Options) (server.Driver, error) {
	return lwsdriver.New(config, options)
}
