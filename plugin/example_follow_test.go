// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"context"
	"fmt"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Follow a workload until its release is ready for the next step of the host.
func ExampleFollow() {
	ctx := context.Background()
	fake := plugintest.NewFakeDriver()
	fake.SetWorkload("default", "vllm", 4, "rev-1")
	address, stop := serveFake(fake)
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
