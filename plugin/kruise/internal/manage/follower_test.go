// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package manage

import (
	"context"
	"iter"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// mortal is a driver whose workload is gone once it is told so.
type mortal struct{ gone chan struct{} }

func (m mortal) WatchBatchContext(
	ctx context.Context, _ *pb.WatchBatchContextRequest, _ ...grpc.CallOption,
) iter.Seq2[*pb.BatchContext, error] {
	return func(yield func(*pb.BatchContext, error) bool) {
		if !yield(&pb.BatchContext{}, nil) {
			return
		}
		select {
		case <-m.gone:
		case <-ctx.Done():
		}
		yield(nil, drivererr.New(pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND, "it is gone"))
	}
}

// That a workload is gone is told, even to those who have seen its deletion before the driver did.
func TestFollowerTellsThatAWorkloadIsGone(t *testing.T) {
	t.Parallel()
	m := mortal{make(chan struct{})}
	f := NewFollower(m, false, func(context.Context, client.ObjectKey) bool { return true })
	f.Watch(client.ObjectKey{Namespace: "default", Name: "vllm"})
	go func() { _ = f.Start(t.Context()) }()
	<-f.Events
	close(m.gone)
	select {
	case <-f.Events:
	case <-time.After(time.Minute):
		t.Error("nobody is told")
	}
}

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
