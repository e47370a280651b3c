// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hosttest is a workload driver without a cluster, for the tests of hosts. It serves over real gRPC, follows the
// contract for one workload, and lets a test say how each batch goes.
package hosttest

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Driver is the fake. Its zero value is no use: see New. All of it may be used by several goroutines.
type Driver struct {
	pb.UnimplementedWorkloadDriverServer
	pb.UnimplementedTrafficRouterServer

	// NoTraffic makes a driver that splits no requests.
	NoTraffic bool
	// OnInitialize, OnUpgrade, OnSetWeight and OnFinalize change the context that the call leaves behind, or refuse the call. They
	// are called with the driver locked, after the default has been applied. Nil: the default.
	OnInitialize func(c *pb.BatchContext) error
	OnUpgrade    func(batch int32, c *pb.BatchContext) error
	OnSetWeight  func(weight int32, c *pb.BatchContext) error
	OnFinalize   func(intent pb.FinalizeIntent, c *pb.BatchContext) error
	// OnCalculate refuses CalculateBatchContext. Nil: it never does.
	OnCalculate func() error
	// OnReinitialize changes the context that Initialize finds for a release id that it knows.
	OnReinitialize func(c *pb.BatchContext)

	mu      sync.Mutex
	changed chan struct{}
	context *pb.BatchContext
	policy  *pb.ReleasePolicy
	calls   []string
}

// New returns a driver with one workload, default/vllm, of 4 groups of 2 pods: adopted, at revision "aaaa", with a
// template of revision "bbbb" that waits to be released. Every batch is ready at once.
func New() *Driver {
	return &Driver{changed: make(chan struct{}), context: &pb.BatchContext{
		Workload: &pb.WorkloadRef{Namespace: "default", Name: "vllm"},
		State:    pb.State_STATE_HOLDING, Reason: "AtRest", Message: "held at rest",
		Replicas: 4, Size: 2, StableReady: 4, Total: 4, Partition: 1000000,
		StableRevision: "aaaa", UpdateRevision: "bbbb", TrafficBasis: pb.TrafficBasis_TRAFFIC_BASIS_GROUP_COUNTS,
	}}
}

// Set changes the context, as the cluster would, and wakes the waiters.
func (d *Driver) Set(change func(c *pb.BatchContext)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.set(change)
}

// Context returns a copy of the context.
func (d *Driver) Context() *pb.BatchContext {
	d.mu.Lock()
	defer d.mu.Unlock()
	return proto.CloneOf(d.context)
}

// Calls returns the calls so far: "Initialize id", "UpgradeBatch 0", "SetWeight 25", "Finalize PROMOTE". Equal ones in a row are one.
func (d *Driver) Calls() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.calls...)
}

// Await returns once the context or the calls satisfy the condition, or ctx ends.
func (d *Driver) Await(ctx context.Context, condition func(c *pb.BatchContext, calls []string) bool) error {
	for {
		d.mu.Lock()
		met, changed := condition(d.context, d.calls), d.changed
		d.mu.Unlock()
		if met {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the fake driver: %w", ctx.Err())
		case <-changed:
		}
	}
}

// set replaces the context, so that copies handed out stay as they are. The lock is held.
func (d *Driver) set(change func(c *pb.BatchContext)) {
	next := proto.CloneOf(d.context)
	change(next)
	d.context = next
	d.wake()
}

// wake wakes the waiters. The lock is held.
func (d *Driver) wake() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// log records a call. The lock is held.
func (d *Driver) log(call string) {
	if n := len(d.calls); n == 0 || d.calls[n-1] != call {
		d.calls = append(d.calls, call)
	}
	d.wake()
}

// settle is the long poll: it returns when the state is settled, after wait, or when ctx ends.
func (d *Driver) settle(ctx context.Context, wait *durationpb.Duration) *pb.BatchContext {
	ctx, cancel := context.WithTimeout(ctx, wait.AsDuration())
	defer cancel()
	_ = d.Await(ctx, func(c *pb.BatchContext, _ []string) bool { return settled(c.GetState()) })
	return d.Context()
}

func settled(s pb.State) bool {
	switch s {
	case pb.State_STATE_PREPARING, pb.State_STATE_UPGRADING, pb.State_STATE_VERIFYING, pb.State_STATE_PROMOTING,
		pb.State_STATE_ROLLING_BACK:
		return false
	default:
		return true
	}
}

// find refuses requests about another workload or release. The lock is held.
func (d *Driver) find(ref *pb.WorkloadRef, id string) error {
	if ref.GetName() != d.context.GetWorkload().GetName() || ref.GetNamespace() != d.context.GetWorkload().GetNamespace() {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND,
			"there is no LeaderWorkerSet %s/%s", ref.GetNamespace(), ref.GetName())
	}
	if id != "" && id != d.context.GetReleaseId() {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_NOT_FOUND, "there is no release %s", id)
	}
	return nil
}
