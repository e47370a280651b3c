// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package manage

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
)

// A workload that appears is followed as soon as somebody asks for it again, and no longer than it is needed.
func TestFollower(t *testing.T) {
	t.Parallel()
	fake := plugintest.NewFakeDriver()
	var needed atomic.Bool
	needed.Store(true)
	f := NewFollower(plugintest.Connect(t, fake, fake), false, func(context.Context, client.ObjectKey) bool { return needed.Load() })
	workload := client.ObjectKey{Namespace: "default", Name: "vllm"}
	f.Watch(workload)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- f.Start(ctx) }()
	fake.SetWorkload("default", "vllm", 4, "v1")
	f.Watch(workload)
	next := func(what string) {
		t.Helper()
		select {
		case e := <-f.Events:
			if client.ObjectKeyFromObject(e.Object) != workload {
				t.Errorf("an event of %v", e.Object)
			}
		case <-time.After(time.Minute):
			t.Fatal(what)
		}
	}
	next("nobody tells that it is there")
	fake.SetWorkload("default", "vllm", 4, "v2")
	next("nobody tells that it has changed")
	needed.Store(false)
	fake.SetWorkload("default", "vllm", 4, "v3")
	f.Watch(workload)
	for {
		f.mu.Lock()
		left := len(f.followed)
		f.mu.Unlock()
		if left == 0 {
			break
		}
		select {
		case <-f.Events:
		case <-time.After(5 * time.Millisecond):
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
