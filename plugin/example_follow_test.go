// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Follow a workload until its release is ready for the next step of the host.
func ExampleFollow() {
	ctx := context.Background()
	address, stop := serveFake()
	defer stop()
	driver, err := plugin.Dial(ctx, address)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = driver.Close() }()

	workload := &pb.WorkloadRef{Namespace: "default", Name: "vllm"}
	for c, err := range plugin.Follow(ctx, driver, &pb.WatchBatchContextRequest{Workload: workload}) {
		if err != nil {
			if !plugin.Retryable(err) {
				fmt.Println(err)
				return
			}
			continue // Follow reconnects
		}
		fmt.Println(c.GetWorkload().GetName(), c.GetState())
		if plugin.Settled(c.GetState()) {
			break
		}
	}
	// Output: vllm STATE_UNMANAGED
}

// serveFake serves a driver in memory, with the workload default/vllm, until stop is called.
func serveFake() (address string, stop func()) {
	dir, err := os.MkdirTemp("", "lockstep-")
	if err != nil {
		panic(err)
	}
	path := filepath.Join(dir, "driver.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		panic(err)
	}
	driver := plugintest.NewFakeDriver()
	driver.SetWorkload("default", "vllm", 4, "rev-1")
	server := grpc.NewServer()
	plugin.Register(server, driver, driver)
	go func() { _ = server.Serve(listener) }()
	return "unix://" + path, func() {
		server.Stop()
		_ = os.RemoveAll(dir)
	}
}
