// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/openkruise/rollouts/api/v1beta1"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/lockstep-rollouts/lockstep/plugin/kruise/batchrelease"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// schedule runs a Reconciler whose cache lags behind the API server against a driver that needs many steps, in any order of
// their events. It enqueues as Run does: for each version in the cache, and for each item of the Follower's watch.
type schedule struct {
	*rapid.T
	*Reconciler

	server client.WithWatch
	// versions are all that the API server ever had, the last one now; cached is the index of the one in the cache.
	versions []*v1beta1.BatchRelease
	cached   int
	queued   bool

	// context is the driver's; sent is what it last sent on the stream. Nil means that the stream is new.
	context, sent *pb.BatchContext
}

func newSchedule(t *rapid.T) *schedule {
	scheme := runtime.NewScheme()
	require.NoError(t, v1beta1.AddToScheme(scheme))
	s := &schedule{T: t, queued: true, context: &pb.BatchContext{
		State: pb.State_STATE_UNMANAGED, Style: pb.Style_STYLE_PARTITION, Replicas: 4, Total: 4, StableRevision: "v1", TemplateRevision: "v2",
	}}
	s.server = fake.NewClientBuilder().WithScheme(scheme).WithObjects(newRelease()).WithStatusSubresource(&v1beta1.BatchRelease{}).Build()
	s.record(context.Background())
	s.Reconciler = &Reconciler{
		Client: interceptor.NewClient(s.server, interceptor.Funcs{
			Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
				s.versions[s.cached].DeepCopyInto(o.(*v1beta1.BatchRelease))
				return nil
			},
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
				defer s.record(ctx)
				return c.Patch(ctx, o, p, opts...)
			},
			SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
				defer s.record(ctx)
				return c.SubResource(sub).Update(ctx, o, opts...)
			},
		}),
		Driver: s, Logger: slog.New(slog.DiscardHandler), Events: &events.FakeRecorder{},
	}
	return s
}

// live is the BatchRelease as the API server has it.
func (s *schedule) live(ctx context.Context) *v1beta1.BatchRelease {
	r := &v1beta1.BatchRelease{}
	require.NoError(s, s.server.Get(ctx, key, r))
	return r
}

func (s *schedule) record(ctx context.Context) {
	r := s.live(ctx)
	if n := len(s.versions); n == 0 || s.versions[n-1].ResourceVersion != r.ResourceVersion {
		s.versions = append(s.versions, r)
	}
}

// edit is a user's change of the spec.
func (s *schedule) edit(partition *int32) {
	r := s.live(context.Background())
	r.Spec.ReleasePlan.BatchPartition = partition
	r.Generation++
	require.NoError(s, s.server.Update(context.Background(), r))
	s.record(context.Background())
}

// syncCache delivers the next version to the cache.
func (s *schedule) syncCache() {
	if s.cached+1 < len(s.versions) {
		s.cached++
		s.queued = true
	}
}

// syncStream delivers the driver's context to the Follower.
func (s *schedule) syncStream() {
	if !proto.Equal(s.sent, s.context) {
		s.sent, s.queued = proto.CloneOf(s.context), true
	}
}

// breakStream has the Follower open the stream again.
func (s *schedule) breakStream() { s.sent = nil }

// restart is another process, or another leader: it lists, and has no stream yet.
func (s *schedule) restart() {
	s.cached, s.queued, s.sent = len(s.versions)-1, true, nil
}

func (s *schedule) reconcile() {
	if !s.queued {
		return
	}
	s.queued = false // what comes while it works is worked on afterwards
	result, err := s.Reconcile(context.Background(), reconcile.Request{NamespacedName: key})
	s.queued = s.queued || err != nil || result.RequeueAfter > 0
}

// roll is a step of the cluster: a group becomes ready, or one of a ready batch is lost.
func (s *schedule) roll() {
	c := s.context
	switch c.GetState() { //nolint:exhaustive // The others wait for the host.
	case pb.State_STATE_UPGRADING:
		if c.Updated = c.GetPlanned(); c.GetUpdatedReady() < c.GetPlanned() {
			c.UpdatedReady++
		} else {
			c.State = pb.State_STATE_READY
		}
	case pb.State_STATE_READY:
		c.UpdatedReady, c.State = c.GetPlanned()-1, pb.State_STATE_UPGRADING
	case pb.State_STATE_PROMOTING:
		if c.Updated = c.GetReplicas(); c.GetUpdatedReady() < c.GetReplicas() {
			c.UpdatedReady++
		} else {
			c.State = pb.State_STATE_COMPLETED
		}
	}
}

// meanwhile is what happens during a call of the driver.
func (s *schedule) meanwhile() {
	for range rapid.IntRange(0, 2).Draw(s.T, "meanwhile") {
		rapid.SampledFrom([]func(){s.syncCache, s.syncStream, s.roll}).Draw(s.T, "event")()
	}
}

func (s *schedule) Call(_ context.Context, request proto.Message) (*pb.BatchContext, error) {
	if _, reads := request.(*pb.CalculateBatchContextRequest); reads {
		s.meanwhile()
		return proto.CloneOf(s.context), nil
	}
	defer s.meanwhile()
	switch r := request.(type) {
	case *pb.AdoptRequest:
		s.context.State = pb.State_STATE_HOLDING
	case *pb.InitializeRequest:
		s.context.ReleaseId, s.context.Owner, s.context.UpdateRevision = r.GetReleaseId(), r.GetOwner(), r.GetTemplateRevision()
	case *pb.UpgradeBatchRequest:
		s.context.Target, s.context.State = r.GetGroups(), pb.State_STATE_UPGRADING
		s.context.Planned = map[string]int32{"50%": 2, "100%": 4}[r.GetGroups()]
	case *pb.FinalizeRequest:
		if s.context.GetState() != pb.State_STATE_COMPLETED {
			s.context.State = pb.State_STATE_PROMOTING
		}
	default:
		return nil, fmt.Errorf("unexpected %T: the workload stays under hold", r)
	}
	return nil, nil //nolint:nilnil // The reconciler reads the context anew.
}

// WatchWorkloads is syncStream.
func (*schedule) WatchWorkloads(
	context.Context, *pb.WatchWorkloadsRequest, ...grpc.CallOption,
) iter.Seq2[*pb.WatchWorkloadsResponse, error] {
	return func(func(*pb.WatchWorkloadsResponse, error) bool) {}
}

// drain delivers all events that are under way, and runs the queue until it is empty.
func (s *schedule) drain() {
	for s.queued || s.cached+1 < len(s.versions) || !proto.Equal(s.sent, s.context) {
		s.syncCache()
		s.syncStream()
		s.reconcile()
	}
}

// mustBeCurrent checks that the status is what the driver's context leads to.
func (s *schedule) mustBeCurrent() {
	r := s.live(context.Background())
	want, call := batchrelease.Next(r, s.context, time.Now())
	if diff := cmp.Diff(want, r.Status); diff != "" || call.Request != nil {
		s.Fatalf("no event is under way, and the status is not that of %v, call %q: %s", s.context, call.Why, diff)
	}
}

// Completed by finalizingPolicy Immediate or not, the status follows the workload to the driver's end: however far the cache
// lags, whenever a stream breaks and whenever another process takes over.
func TestStatusFollowsToTheEnd(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := newSchedule(t)
		events := []func(){s.syncCache, s.syncStream, s.roll, s.reconcile, s.breakStream, s.restart}
		for _, partition := range []*int32{ptr.To[int32](0), ptr.To[int32](1), nil} {
			s.edit(partition)
			for range rapid.IntRange(0, 20).Draw(t, "events") {
				rapid.SampledFrom(events).Draw(t, "event")()
			}
			s.drain()
			s.mustBeCurrent()
		}
		for s.context.GetState() != pb.State_STATE_COMPLETED {
			s.roll()
			s.drain()
			s.mustBeCurrent()
		}
		if r := s.live(context.Background()); !batchrelease.Over(r) || !strings.HasPrefix(r.Status.Message, "promoted") || r.Status.CanaryStatus.UpdatedReadyReplicas != 4 {
			t.Fatalf("the driver has ended, and the status is %+v", r.Status)
		}
	})
}
