// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"iter"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

var vllm = client.ObjectKey{Namespace: "default", Name: "vllm"}

// queue passes on what is added to it.
type queue struct {
	workqueue.TypedRateLimitingInterface[client.ObjectKey]

	want  client.ObjectKey
	added chan client.ObjectKey
}

func (q queue) Add(key client.ObjectKey) { q.added <- key }

// next waits for a request.
func (q queue) next(t *testing.T, what string) {
	t.Helper()
	select {
	case key := <-q.added:
		if key != q.want {
			t.Errorf("a request for %v", key)
		}
	case <-time.After(time.Minute):
		t.Fatal(what)
	}
}

// start starts a Follower of a workload, whose requests are its own key while it is needed.
func start(t *testing.T, driver Driver, key client.ObjectKey, needed *atomic.Bool) (*Follower[client.ObjectKey], queue) {
	t.Helper()
	needed.Store(true)
	f := &Follower[client.ObjectKey]{Driver: driver, Requests: func(_ context.Context, workload client.ObjectKey) []client.ObjectKey {
		if needed.Load() {
			return []client.ObjectKey{workload}
		}
		return nil
	}}
	q := queue{want: key, added: make(chan client.ObjectKey, 100)}
	if err := f.Start(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	f.Watch(key)
	return f, q
}

// mortal is a driver whose workload is under hold until gone is closed.
type mortal struct {
	Driver

	key  client.ObjectKey
	gone chan struct{}
}

func (m mortal) WatchWorkloads(
	ctx context.Context, _ *pb.WatchWorkloadsRequest, _ ...grpc.CallOption,
) iter.Seq2[*pb.WatchWorkloadsResponse, error] {
	ref := plugin.RefOf(m.key.Namespace, m.key.Name)
	return func(yield func(*pb.WatchWorkloadsResponse, error) bool) {
		if !yield(&pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Context{Context: &pb.BatchContext{Workload: ref}}}, nil) {
			return
		}
		select {
		case <-m.gone:
		case <-ctx.Done():
		}
		if yield(&pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Removed{Removed: ref}}, nil) {
			<-ctx.Done()
		}
	}
}

func (mortal) CalculateBatchContext(
	context.Context, *pb.CalculateBatchContextRequest, ...grpc.CallOption,
) (*pb.CalculateBatchContextResponse, error) {
	return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND, "it is gone")
}

// The end of a workload is reported, although its deletion may have been observed before the driver observed it.
func TestFollowerReportsThatAWorkloadIsGone(t *testing.T) {
	t.Parallel()
	for _, key := range []client.ObjectKey{vllm, {Namespace: "default", Name: "disaggregatedset/llm"}} {
		m := mortal{key: key, gone: make(chan struct{})}
		_, q := start(t, m, key, &atomic.Bool{})
		q.next(t, "no request for the workload")
		close(m.gone)
		q.next(t, "no request for its end")
	}
}

// A workload that is created is followed at the next Watch, and no longer than it is needed.
func TestFollower(t *testing.T) {
	t.Parallel()
	fake := plugintest.NewFakeDriver()
	var needed atomic.Bool
	f, q := start(t, plugintest.Connect(t, fake, fake), vllm, &needed)
	fake.SetWorkload("default", "vllm", 4, "v1")
	f.Watch(vllm)
	q.next(t, "no request for the workload that appeared")
	fake.SetWorkload("default", "vllm", 4, "v2")
	q.next(t, "no request for its change")
	needed.Store(false)
	fake.SetWorkload("default", "vllm", 4, "v3")
	f.Watch(vllm)
	for {
		f.mu.Lock()
		left := len(f.absent)
		f.mu.Unlock()
		if left == 0 {
			break
		}
		<-time.After(5 * time.Millisecond)
	}
}
