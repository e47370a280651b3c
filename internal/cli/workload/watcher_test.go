// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"testing"
	"time"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/internal/host/hosttest"
	"github.com/lockstep-rollouts/lockstep/internal/host/screen"
	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// A workload that is deleted and created again is shown again.
func TestWatchRecreatedWorkload(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	driver := hosttest.New()
	client, err := plugin.Dial(ctx, hosttest.Serve(t, driver).Address)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ref := &pb.WorkloadRef{Namespace: "default", Name: "vllm"}
	w := &watcher{Link: &connect.Link{Client: client}, only: ref}
	chosen := newChoice()
	chosen.set(ref)
	rename := func(name string) {
		driver.Set(func(c *pb.BatchContext) { c.Workload = &pb.WorkloadRef{Namespace: "default", Name: name} })
	}
	missing, recreated := false, false
	follower := &host.Follower{Driver: client, Lost: func(err error) { t.Logf("lost: %v", err) }}
	err = w.details(ctx, follower, chosen, func(message any) {
		switch message.(type) {
		case screen.Missing:
			missing = true
			rename("vllm")
		case screen.Detail:
			if missing {
				recreated = true
				cancel()
				return
			}
			rename("gone")
		}
	})
	if err != nil || !recreated {
		t.Errorf("missing %t, shown again %t: %v", missing, recreated, err)
	}
}
