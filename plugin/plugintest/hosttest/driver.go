// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	"context"
	"testing"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Driver is a fake driver with one workload. See New.
type Driver struct{ *plugintest.FakeDriver }

// New returns a driver with one workload, default/vllm, of 4 groups of 2 pods: adopted, at revision "aaaa", with a
// template of revision "bbbb" that waits to be released.
func New() *Driver {
	d := &Driver{plugintest.NewFakeDriver()}
	d.SetWorkload("default", "vllm", 4, "aaaa")
	d.Set(func(c *pb.BatchContext) {
		c.State, c.Reason, c.Message = pb.State_STATE_HOLDING, "AtRest", "held at rest"
		c.Size, c.Partition = 2, 1000000
	})
	d.SetWorkload("default", "vllm", 4, "bbbb")
	return d
}

// Set changes the context, as the cluster would.
func (d *Driver) Set(change func(c *pb.BatchContext)) { d.FakeDriver.Set("default", "vllm", change) }

// Context returns a copy of the context.
func (d *Driver) Context() *pb.BatchContext { return d.FakeDriver.Context("default", "vllm") }

// Await returns once the context and the calls satisfy the condition, or ctx ends.
func (d *Driver) Await(ctx context.Context, condition func(c *pb.BatchContext, calls []string) bool) error {
	return d.FakeDriver.Await(ctx, "default", "vllm", condition)
}

// Serve serves a driver until the test ends. Its router is the driver, if that is one.
func Serve(t testing.TB, driver pb.WorkloadDriverServer) *plugintest.Server {
	t.Helper()
	router, _ := driver.(pb.TrafficRouterServer)
	return plugintest.NewServer(t, driver, router)
}
