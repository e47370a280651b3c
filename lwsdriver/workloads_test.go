// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/encoded"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// workloadsStream is the receiving end of a WatchWorkloads.
type workloadsStream struct {
	grpc.ServerStreamingServer[pb.WatchWorkloadsResponse]

	t       *testing.T
	ctx     context.Context //nolint:containedctx // it is a stream
	changes chan *pb.WatchWorkloadsResponse
}

func (s workloadsStream) Context() context.Context { return s.ctx }

func (s workloadsStream) Send(r *pb.WatchWorkloadsResponse) error {
	select {
	case s.changes <- r:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// SendMsg is Send for a message that is encoded already.
func (s workloadsStream) SendMsg(m any) error {
	raw, err := proto.Marshal(m.(proto.Message))
	if err != nil {
		return err
	}
	r := &pb.WatchWorkloadsResponse{}
	if err := proto.Unmarshal(raw, r); err != nil {
		return err
	}
	return s.Send(r)
}

// next is the next change in a word: "here", "here failed (RecordInvalid)", "here removed" or "synced".
func (s workloadsStream) next() string {
	s.t.Helper()
	select {
	case r := <-s.changes:
		switch change := r.GetChange().(type) {
		case *pb.WatchWorkloadsResponse_Removed:
			return change.Removed.GetName() + " removed"
		case *pb.WatchWorkloadsResponse_Synced:
			return "synced"
		}
		c := r.GetContext()
		if c.GetState() == pb.State_STATE_FAILED {
			return c.GetWorkload().GetName() + " failed (" + c.GetReason() + ")"
		}
		return c.GetWorkload().GetName()
	case <-time.After(await.Patience):
		s.t.Fatal("no change came in time")
		return ""
	}
}

func (s scoped) watchWorkloads(t *testing.T, req *pb.WatchWorkloadsRequest) workloadsStream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stream := workloadsStream{t: t, ctx: ctx, changes: make(chan *pb.WatchWorkloadsResponse)}
	ended := make(chan error, 1)
	go func() { ended <- s.WatchWorkloads(req, stream) }()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return stream
}

func TestWatchWorkloads(t *testing.T) {
	t.Parallel()
	s := newScoped(t, Options{ReadOnly: true})
	await.True(t, "the queue is empty", s.engine.Idle)
	stream := s.watchWorkloads(t, &pb.WatchWorkloadsRequest{Namespace: "ns"})
	sets := s.Sets.LeaderworkersetV1().LeaderWorkerSets("ns")
	step := func(reason string, change func() error, want ...string) {
		t.Helper()
		require.NoError(t, change())
		for _, w := range want {
			require.Equal(t, w, stream.next(), reason)
		}
	}
	edit := func(name string, change func(*lws.LeaderWorkerSet)) func() error {
		return func() error {
			w, err := sets.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			change(w)
			_, err = sets.Update(t.Context(), w, metav1.UpdateOptions{})
			return err
		}
	}
	step("what is held comes first", func() error { return nil }, "here", "there", "synced")
	step("a record that can't be read is shown, not left out", edit("there", func(w *lws.LeaderWorkerSet) {
		w.Annotations[record.RecordAnnotation] = "{"
	}), "there failed (RecordInvalid)")
	step("a disowned workload", edit("here", func(w *lws.LeaderWorkerSet) { w.Annotations = nil }), "here removed")
	step("a workload that was never under hold", func() error {
		plain := drifted(t, "plain")
		plain.Annotations = nil
		return s.Sets.Tracker().Add(plain)
	})
	step("a new one appears", func() error {
		return s.Sets.Tracker().Add(drifted(t, "late"))
	}, "late")
	step("a deleted workload", func() error {
		return sets.Delete(t.Context(), "late", metav1.DeleteOptions{})
	}, "late removed")
	got, own := s.written(), []string{"delete leaderworkersets", "update leaderworkersets"}
	assert.True(t, slices.Equal(got, own), "the watch wrote: %q, beside the test's %q", got, own)
}

func TestWatchWorkloadsOfOneNamespace(t *testing.T) {
	t.Parallel()
	s := newScoped(t, Options{ReadOnly: true})
	assert.Equal(t, "synced", s.watchWorkloads(t, &pb.WatchWorkloadsRequest{Namespace: "other"}).next(), "another namespace")
	own := newScoped(t, Options{ReadOnly: true, Namespace: "ns"})
	err := own.WatchWorkloads(&pb.WatchWorkloadsRequest{Namespace: "other"}, workloadsStream{t: t, ctx: t.Context()})
	assert.Equal(t, pb.ErrorReason_ERROR_REASON_UNSUPPORTED, drivererr.Reason(err), "a driver of another namespace: %v, want UNSUPPORTED", err)
	one := newScoped(t, Options{ReadOnly: true, Workload: here})
	stream := one.watchWorkloads(t, &pb.WatchWorkloadsRequest{})
	first, second := stream.next(), stream.next()
	assert.True(t, first == "here" && second == "synced", "a driver of one workload sends %q, %q", first, second)
}

// Watches of a workload send one message, which is encoded once, and encode another one after a change.
func TestWatchesShareState(t *testing.T) {
	t.Parallel()
	s := newScoped(t, Options{ReadOnly: true})
	await.True(t, "the queue is empty", s.engine.Idle)
	state := func(rows bool) *encoded.Message {
		look, decision, err := s.engine.Look(here)
		require.NoError(t, err)
		m, err := s.sharedState(look, decision, rows)
		require.NoError(t, err)
		return m
	}
	first := state(false)
	assert.Same(t, first, state(false), "nothing has changed")
	assert.NotEqual(t, first.Sum, state(true).Sum, "with groups")
	s.engine.Observer.Notify(here)
	again := state(false)
	assert.True(t, again != first && again.Sum == first.Sum, "a change that changes no context: %v", again)
}

// contextStream is the receiving end of a WatchBatchContext.
type contextStream struct {
	grpc.ServerStreamingServer[pb.WatchBatchContextResponse]

	ctx  context.Context //nolint:containedctx // it is a stream
	sent chan any
}

func (s contextStream) Context() context.Context { return s.ctx }

func (s contextStream) SendMsg(m any) error {
	s.sent <- m
	return nil
}

func TestWatchEndsWithDeletedWorkload(t *testing.T) {
	t.Parallel()
	s := newScoped(t, Options{ReadOnly: true})
	stream, ended := contextStream{ctx: t.Context(), sent: make(chan any, 10)}, make(chan error, 1)
	go func() {
		ended <- s.WatchBatchContext(&pb.WatchBatchContextRequest{Workload: &pb.WorkloadRef{Namespace: "ns", Name: "here"}}, stream)
	}()
	<-stream.sent
	require.NoError(t, s.Sets.LeaderworkersetV1().LeaderWorkerSets("ns").Delete(t.Context(), "here", metav1.DeleteOptions{}))
	err := <-ended
	assert.Equal(t, pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND, drivererr.Reason(err), "the watch ended with %v", err)
}
