// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"iter"
	"testing"
	"time"

	"google.golang.org/grpc"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// queue passes on what is added to it.
type queue struct {
	workqueue.TypedRateLimitingInterface[client.ObjectKey]

	added chan client.ObjectKey
}

func (q queue) Add(key client.ObjectKey) { q.added <- key }

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

// The end of a workload is reported, although its deletion may have been observed before the driver observed it.
func TestFollowerReportsThatAWorkloadIsGone(t *testing.T) {
	t.Parallel()
	for _, key := range []client.ObjectKey{{Namespace: "default", Name: "vllm"}, {Namespace: "default", Name: "disaggregatedset/llm"}} {
		m, q := mortal{key: key, gone: make(chan struct{})}, queue{added: make(chan client.ObjectKey, 100)}
		f := Follower[client.ObjectKey]{Driver: m, Requests: func(_ context.Context, workload client.ObjectKey, _ string) []client.ObjectKey {
			return []client.ObjectKey{workload}
		}}
		if err := f.Start(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		for _, what := range []string{"the workload", "its end"} {
			select {
			case got := <-q.added:
				if got != key {
					t.Errorf("a request for %v", got)
				}
			case <-time.After(time.Minute):
				t.Fatalf("no request for %s", what)
			}
			if what == "the workload" {
				close(m.gone)
			}
		}
	}
}
