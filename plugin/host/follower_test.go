// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/text"
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
		f := Follower[client.ObjectKey]{Driver: m, Logger: slog.New(slog.DiscardHandler), Requests: func(_ context.Context, workload client.ObjectKey, _ string) []client.ObjectKey {
			return []client.ObjectKey{workload}
		}}
		require.NoError(t, f.Start(t.Context(), q))
		for _, what := range []string{"the workload", "its end"} {
			select {
			case got := <-q.added:
				assert.Equal(t, key, got, "a request for")
			case <-time.After(time.Minute):
				t.Fatalf("no request for %s", what)
			}
			if what == "the workload" {
				close(m.gone)
			}
		}
	}
}

// refusing is a driver that refuses each watch.
type refusing struct{ Driver }

func (refusing) WatchWorkloads(context.Context, *pb.WatchWorkloadsRequest, ...grpc.CallOption) iter.Seq2[*pb.WatchWorkloadsResponse, error] {
	return func(yield func(*pb.WatchWorkloadsResponse, error) bool) {
		yield(nil, status.Error(codes.PermissionDenied, "no such right"))
	}
}

// A driver that can't be watched is logged, once.
func TestFollowerLogsThatItCantWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var logs text.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		Follower[client.ObjectKey]{Driver: refusing{}, Logger: slog.New(slog.NewTextHandler(&logs, nil))}.follow(ctx, nil)
		got := logs.String()
		assert.True(t, strings.Count(got, "\n") == 1 && strings.Contains(got, "no such right"), "logged in an hour:\n%s", got)
	})
}

type workloadRef struct{ Name string }

// An object that does not decode still has its name and its workload, and nothing of what was decoded before the mistake.
func TestDecodeKeepsTheNames(t *testing.T) {
	t.Parallel()
	type spec struct {
		Before      int32
		WorkloadRef workloadRef
	}
	type object struct {
		Metadata metav1.ObjectMeta
		Spec     spec
	}
	u := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": "a"},
		"spec":     map[string]any{"before": int64(1), "workloadRef": map[string]any{"name": "vllm"}},
	}}
	want := object{metav1.ObjectMeta{Name: "a"}, spec{1, workloadRef{"vllm"}}}
	var got object
	err := Decode(u, &got)
	assert.True(t, err == nil && cmp.Equal(want, got), "%v: %s", err, cmp.Diff(want, got))
	_ = unstructured.SetNestedField(u.Object, int64(99999999999), "spec", "before")
	want.Spec.Before = 0
	err = Decode(u, &got)
	assert.True(t, errors.Is(err, errUndecodable) && cmp.Equal(want, got), "%v: %s", err, cmp.Diff(want, got))
}
