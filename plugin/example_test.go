// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// The main function of a driver serves it when a host has started the program, and explains itself otherwise.
func ExampleServe() {
	driver := plugintest.NewFakeDriver() // yours
	err := plugin.Serve(context.Background(), driver, driver, plugin.ServeOptions{})
	if errors.Is(err, plugin.ErrNotStartedByHost) {
		fmt.Println("this is a driver: start it from a host, or use it as a server")
	}
	// Output: this is a driver: start it from a host, or use it as a server
}

// A host starts the driver's program, asks what it can do, and ends it.
func ExampleLaunch() {
	ctx := context.Background()
	program, err := os.Executable() // the path of the driver, such as /usr/local/bin/lockstep
	if err != nil {
		fmt.Println(err)
		return
	}
	driver, err := plugin.Launch(ctx, program, plugin.LaunchOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = driver.Close() }()

	fmt.Println("releases:", driver.Has(pb.Capability_CAPABILITY_RELEASE))
	fmt.Println("plans:", driver.Has(pb.Capability_CAPABILITY_PLAN))
	// Output:
	// releases: true
	// plans: false
}

// A host drives a release: begin, one batch after the other, promote. Each call may be repeated, so a host that was
// restarted begins again from the first.
func ExampleClient() {
	ctx := context.Background()
	fake := plugintest.NewFakeDriver()
	address, stop := serveFake(fake)
	defer stop()
	driver, err := plugin.Dial(ctx, address, plugin.DialOptions{}) // such as dns:///lockstep.lockstep-system:9443
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = driver.Close() }()

	// Under hold a change of the template updates no pod until a release does.
	fake.SetWorkload("default", "vllm", 4, "rev-1")
	if _, err := driver.Adopt(ctx, &pb.AdoptRequest{Workload: &pb.WorkloadRef{Namespace: "default", Name: "vllm"}}); err != nil {
		fmt.Println(err)
		return
	}
	fake.SetWorkload("default", "vllm", 4, "rev-2")

	if err := release(ctx, os.Stdout, driver, "r1"); err != nil {
		fmt.Println(err, plugin.Reason(err), "again:", plugin.Retryable(err))
	}
	// Output:
	// batch 0: STATE_READY, 1 of 4 groups at the update revision
	// batch 1: STATE_READY, 4 of 4 groups at the update revision
	// done: true
}

func release(ctx context.Context, out io.Writer, driver *plugin.Client, id string) error {
	workload := &pb.WorkloadRef{Namespace: "default", Name: "vllm"}
	wait := durationpb.New(10 * time.Second)
	policy := &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"25%", "100%"}}
	if _, err := driver.Initialize(ctx, &pb.InitializeRequest{
		Workload: workload, ReleaseId: id, Policy: policy, Owner: "example", Wait: wait,
	}); err != nil {
		return err
	}
	for batch := range policy.GetBatches() {
		r, err := driver.UpgradeBatch(ctx, &pb.UpgradeBatchRequest{
			Workload: workload, ReleaseId: id, Target: &pb.UpgradeBatchRequest_Batch{Batch: int32(batch)}, Wait: wait,
		})
		if err != nil {
			return err
		}
		c := r.GetContext()
		fmt.Fprintf(out, "batch %d: %s, %d of %d groups at the update revision\n", batch, c.GetState(), c.GetUpdatedReady(), c.GetReplicas())
	}
	r, err := driver.Finalize(ctx, &pb.FinalizeRequest{
		Workload: workload, ReleaseId: id, Intent: pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE, Wait: wait,
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "done:", r.GetDone())
	return nil
}

// serveFake serves a driver in memory until stop is called.
func serveFake(driver *plugintest.FakeDriver) (address string, stop func()) {
	dir, err := os.MkdirTemp("", "lockstep-")
	if err != nil {
		panic(err)
	}
	path := filepath.Join(dir, "driver.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		panic(err)
	}
	server := grpc.NewServer()
	plugin.Register(server, driver, driver)
	go func() { _ = server.Serve(listener) }()
	return "unix://" + path, func() {
		server.Stop()
		_ = os.RemoveAll(dir)
	}
}

// Follow a workload until its release is ready for the next step of the host.
func ExampleFollow() {
	ctx := context.Background()
	fake := plugintest.NewFakeDriver()
	fake.SetWorkload("default", "vllm", 4, "rev-1")
	address, stop := serveFake(fake)
	defer stop()
	driver, err := plugin.Dial(ctx, address, plugin.DialOptions{})
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
