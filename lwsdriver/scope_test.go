// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// drifted is an adopted workload whose hold was removed: a driver that may write restores it.
func drifted(t *testing.T, name string) *lws.LeaderWorkerSet {
	t.Helper()
	value, err := (&record.Record{Saved: record.Native(record.Hold())}).Encode()
	require.NoError(t, err)
	w := &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID(name), ResourceVersion: "1",
		Annotations: map[string]string{record.RecordAnnotation: value},
	}}
	w.Spec.Replicas = ptr.To[int32](2)
	w.Spec.RolloutStrategy.RollingUpdateConfiguration = ptr.To(record.Native(record.Hold()))
	return w
}

// scoped is a running driver of two drifted workloads, "ns/here" and "ns/there".
type scoped struct{ *fixture }

func newScoped(t *testing.T, o Options) scoped {
	t.Helper()
	b := newFixtureWith(t, o, fake.NewClientset(), lwstest.NoRoutes(), drifted(t, "here"), drifted(t, "there"))
	b.run()
	b.eventually("the caches are filled", b.Synced)
	return scoped{b}
}

// written are the names of the workloads that were written to, and everything else that was not read.
func (s scoped) written() []string {
	var names []string
	for _, a := range append(s.Core.Actions(), s.Sets.Actions()...) {
		if slices.Contains([]string{"get", "list", "watch"}, a.GetVerb()) || a.GetResource().Resource == "selfsubjectaccessreviews" {
			continue
		}
		name := a.GetVerb() + " " + a.GetResource().Resource
		if p, ok := a.(clienttesting.PatchAction); ok {
			name = p.GetName()
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func TestScope(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, reason string
		options      Options
		want         []string
	}{
		{"all", "a driver repairs what drifted", Options{}, []string{"here", "there"}},
		{"one", "a command about one workload leaves the others alone", Options{Workload: here}, []string{"here"}},
		{"read only", "looking changes nothing", Options{ReadOnly: true}, nil},
		{"one, read only", "looking changes nothing", Options{Workload: here, ReadOnly: true}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newScoped(t, test.options)
			await.True(t, "what is to be written is", func() bool { return len(s.written()) >= len(test.want) })
			await.True(t, "the queue is empty", s.engine.Idle)
			for _, name := range []string{"here", "there"} {
				answer, err := s.CalculateBatchContext(t.Context(), &pb.CalculateBatchContextRequest{Workload: ref(name)})
				assert.True(t, err == nil && answer.GetContext().GetReplicas() == 2, "%s: looking at %s: %v, %v", test.reason, name, answer, err)
			}
			got := s.written()
			assert.True(t, slices.Equal(got, test.want), "%s: written: %q, want %q", test.reason, got, test.want)
		})
	}
}

func TestScopeRefusesChanges(t *testing.T) {
	t.Parallel()
	for name, opt := range map[string]Options{"one": {Workload: here}, "read only": {ReadOnly: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScoped(t, opt)
			policy := &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"100%"}}
			for rpc, call := range map[string]func(context.Context) error{
				"Adopt": func(ctx context.Context) error {
					_, err := s.Adopt(ctx, &pb.AdoptRequest{Workload: ref("there")})
					return err
				},
				"Initialize": func(ctx context.Context) error {
					_, err := s.Initialize(ctx, &pb.InitializeRequest{Workload: ref("there"), ReleaseId: "r1", Policy: policy})
					return err
				},
				"Finalize": func(ctx context.Context) error {
					_, err := s.Finalize(ctx, &pb.FinalizeRequest{
						Workload: ref("there"), ReleaseId: "r1", Intent: pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK,
					})
					return err
				},
			} {
				err := call(t.Context())
				assert.Equal(t, pb.ErrorReason_ERROR_REASON_UNSUPPORTED, drivererr.Reason(err), "%s: %v, want UNSUPPORTED", rpc, err)
			}
		})
	}
}

func TestDrainEndsWaitsButNotDriver(t *testing.T) {
	t.Parallel()
	s := newScoped(t, Options{})
	s.Drain()
	s.Drain()
	stream := watchStream{ctx: t.Context()}
	err := s.WatchBatchContext(&pb.WatchBatchContextRequest{Workload: ref("here")}, stream)
	assert.Equal(t, pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE, drivererr.Reason(err), "a watch ends with %v, want API_UNAVAILABLE", err)
	_, err = s.Adopt(t.Context(), &pb.AdoptRequest{Workload: ref("here")})
	assert.NoError(t, err, "Adopt while draining")
}

// watchStream takes what a watch sends.
type watchStream struct {
	pb.WorkloadDriver_WatchBatchContextServer

	ctx context.Context //nolint:containedctx // this is how gRPC hands a stream its context
}

func (watchStream) SendMsg(any) error          { return nil }
func (s watchStream) Context() context.Context { return s.ctx }

var here = types.NamespacedName{Namespace: "ns", Name: "here"}

func ref(name string) *pb.WorkloadRef { return &pb.WorkloadRef{Namespace: "ns", Name: name} }
