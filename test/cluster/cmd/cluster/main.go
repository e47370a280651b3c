// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Command cluster runs a real Kubernetes control plane with LeaderWorkerSet and fake nodes on this machine until Ctrl-C.
//
//	go run -C test ./cluster/cmd/cluster
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	interrupted := ctx.Err() != nil
	cancel()
	if err != nil && !interrupted {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

type config struct {
	nodes      int
	dir        string
	kubeconfig string
	prebuild   bool
	options    []cluster.Option
}

// switches are flags that each add an option.
var switches = []struct {
	name, usage string
	option      cluster.Option
}{
	{"audit", "write an audit log", cluster.WithAudit()},
	{"without-lws", "do not install LeaderWorkerSet", cluster.WithoutLWS()},
	{"gateway-api", "install the CRDs of the Gateway API and InferencePool", cluster.WithGatewayAPI()},
	{"traefik", "run Traefik as Gateway controller, with the Gateway API", cluster.WithTraefik()},
	{"argo", "run the Argo Rollouts controller, without plugins", cluster.WithArgo()},
	{"kruise", "run the manager of Kruise Rollouts", cluster.WithKruise()},
}

func parse(args []string, stderr io.Writer) (config, error) {
	var c config
	flags := flag.NewFlagSet("cluster", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&c.nodes, "nodes", 8, "number of nodes, each with 64 CPUs, 512 GiB and 8 nvidia.com/gpu")
	flags.StringVar(&c.dir, "dir", "", "empty directory for data, certificates and logs, which is kept (default: a temporary directory, which is removed)")
	flags.StringVar(&c.kubeconfig, "kubeconfig-out", "", "also write the administrator's kubeconfig to this file")
	flags.BoolVar(&c.prebuild, "prebuild", false, "only build the programs, do not start them")
	chosen := make([]*bool, len(switches))
	for i, s := range switches {
		chosen[i] = flags.Bool(s.name, false, s.usage)
	}
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	c.options = []cluster.Option{cluster.WithNodes(c.nodes, nil), cluster.WithLog(stderr)}
	if c.dir != "" {
		c.options = append(c.options, cluster.WithDir(c.dir))
	}
	for i, s := range switches {
		if *chosen[i] {
			c.options = append(c.options, s.option)
		}
	}
	return c, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	config, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	if config.prebuild {
		return cluster.Build(ctx, stderr, config.options...)
	}
	c, err := cluster.Start(ctx, config.options...)
	if err != nil {
		return err
	}
	defer c.Stop()
	kubeconfig := c.Kubeconfig()
	if config.kubeconfig != "" {
		kubeconfig = config.kubeconfig
		if err := cluster.WriteKubeconfig(c.RESTConfig(), kubeconfig); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintf(stdout, "export KUBECONFIG=%s\n", kubeconfig); err != nil {
		return fmt.Errorf("print kubeconfig: %w", err)
	}
	select {
	case <-ctx.Done():
		return nil
	case <-c.Done():
		return c.Err()
	}
}
