// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// rpc is one of the contract, from the bytes of its request.
type rpc struct {
	name    string
	request func() proto.Message
	call    func(context.Context, *Driver, proto.Message) error
	// intent is what a request that was found valid asks of the planner. It is nil for requests that write nothing.
	intent func(proto.Message) plan.Intent
}

// unary makes an rpc of a method.
func unary[Req any, P interface {
	*Req
	proto.Message
}, Res any](name string, method func(*Driver, context.Context, P) (Res, error), intent func(P) plan.Intent) rpc {
	r := rpc{
		name:    name,
		request: func() proto.Message { return P(new(Req)) },
		call: func(ctx context.Context, d *Driver, m proto.Message) error {
			_, err := method(d, ctx, m.(P))
			return err
		},
	}
	if intent != nil {
		r.intent = func(m proto.Message) plan.Intent { return intent(m.(P)) }
	}
	return r
}

// rpcs are all of both services, in a fixed order: the corpus names them by index.
var rpcs = []rpc{
	unary("Initialize", (*Driver).Initialize, func(r *pb.InitializeRequest) plan.Intent { return beginOf(r, "") }),
	unary("UpgradeBatch", (*Driver).UpgradeBatch, targetOf),
	unary("Finalize", (*Driver).Finalize, func(r *pb.FinalizeRequest) plan.Intent { return finishOf(r, "") }),
	unary("CalculateBatchContext", (*Driver).CalculateBatchContext, nil),
	{
		name:    "WatchBatchContext",
		request: func() proto.Message { return &pb.WatchBatchContextRequest{} },
		call: func(ctx context.Context, d *Driver, m proto.Message) error {
			return d.WatchBatchContext(m.(*pb.WatchBatchContextRequest), sink[pb.WatchBatchContextResponse]{ctx: ctx})
		},
	},
	unary("Adopt", (*Driver).Adopt, func(*pb.AdoptRequest) plan.Intent { return plan.Adopt{} }),
	unary("Disown", (*Driver).Disown, func(r *pb.DisownRequest) plan.Intent { return plan.Disown{Revision: r.GetTemplateRevision()} }),
	unary("Plan", (*Driver).Plan, nil),
	unary("ListRevisions", (*Driver).ListRevisions, nil),
	unary("Undo", (*Driver).Undo, func(r *pb.UndoRequest) plan.Intent {
		return plan.Undo{Revision: r.GetRevision(), Template: r.GetTemplateRevision()}
	}),
	unary("SetWeight", (*Driver).SetWeight, weightOf),
	unary("SetHeaderRoute", (*Driver).SetHeaderRoute, headerRouteOf),
	unary("SetMirror", (*Driver).SetMirror, mirrorOf),
	unary("VerifyWeight", (*Driver).VerifyWeight, nil),
	unary("Reset", (*Driver).Reset, resetOf),
	unary("GetDriverInfo", (*Driver).GetDriverInfo, nil),
	{
		name:    "WatchWorkloads",
		request: func() proto.Message { return &pb.WatchWorkloadsRequest{} },
		call: func(ctx context.Context, d *Driver, m proto.Message) error {
			return d.WatchWorkloads(m.(*pb.WatchWorkloadsRequest), sink[pb.WatchWorkloadsResponse]{ctx: ctx})
		},
	},
}

// sink is a stream whose client disconnects after the first response.
type sink[T any] struct {
	grpc.ServerStreamingServer[T]

	ctx context.Context //nolint:containedctx // it is a stream
}

func (s sink[T]) Context() context.Context { return s.ctx }
func (s sink[T]) Send(*T) error            { return status.Error(codes.Canceled, "gone") }
func (s sink[T]) SendMsg(any) error        { return status.Error(codes.Canceled, "gone") }

// FuzzRequests: whatever bytes come, no RPC panics; what is invalid is refused as the contract says, with the fields that
// are; and what the service does with the rest is something that the next driver can read.
func FuzzRequests(f *testing.F) {
	policy := &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"25%", "100%"}}
	routed := proto.CloneOf(policy)
	routed.Traffic = &pb.TrafficPolicy{StableService: "vllm", HttpRoutes: []string{"vllm"}}
	for method, m := range map[string]proto.Message{
		"Initialize":            &pb.InitializeRequest{Workload: vllmRef, ReleaseId: "r2", Policy: routed, Wait: durationpb.New(-1)},
		"UpgradeBatch":          &pb.UpgradeBatchRequest{Workload: vllmRef, ReleaseId: "r1", Target: &pb.UpgradeBatchRequest_Groups{Groups: "50%"}},
		"Finalize":              &pb.FinalizeRequest{Workload: vllmRef, ReleaseId: "r1", Intent: pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE},
		"CalculateBatchContext": &pb.CalculateBatchContextRequest{Workload: vllmRef, IncludeGroups: true},
		"WatchBatchContext":     &pb.WatchBatchContextRequest{Workload: vllmRef},
		"SetWeight":             &pb.SetWeightRequest{Workload: vllmRef, ReleaseId: "r1", Weight: 101},
		"SetHeaderRoute": &pb.SetHeaderRouteRequest{Workload: vllmRef, ReleaseId: "r1", Name: "Not A Name", Matches: []*pb.HeaderMatch{
			{Name: "x-a", Value: &pb.HeaderMatch_Regex{Regex: "(a|b)+"}}, {Name: "tester", Value: &pb.HeaderMatch_Cookie{Cookie: "always"}},
		}},
		"SetMirror": &pb.SetMirrorRequest{Workload: vllmRef, ReleaseId: "r1", Percentage: -1},
	} {
		raw, err := proto.Marshal(m)
		require.NoError(f, err)
		for i, r := range rpcs {
			if r.name == method {
				f.Add(uint8(i), raw)
			}
		}
	}
	// Nothing is written: what comes after the checks is looked at by itself, and no call waits for it.
	b := newFixtureWith(f, Options{ReadOnly: true}, fake.NewClientset(), lwstest.NoRoutes(), lwstest.InPhase(f, record.Progressing))
	b.run()
	b.eventually("the driver serves", b.Synced)
	var states []*observe.Snapshot
	for _, phase := range []record.Phase{
		record.Progressing, record.Promoting, record.Promoted, record.RollingBack, record.CleaningUp, record.Nothing,
	} {
		states = append(states, newFixture(f, lwstest.InPhase(f, phase)).look())
		with := newFixture(f, lwstest.InPhase(f, phase)).look()
		with.Policy, _ = record.ParsePolicy(routed)
		setup := with.SetupFor(with.Policy)
		with.Setup = &setup
		states = append(states, with)
	}

	f.Fuzz(func(t *testing.T, method uint8, raw []byte) {
		r := rpcs[int(method)%len(rpcs)]
		m := r.request()
		if err := proto.Unmarshal(raw, m); err != nil {
			return // gRPC has refused it
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err := r.call(ctx, b.Driver, m)
		checkRefusal(t, r, m, err)
		if drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_INVALID_REQUEST || r.intent == nil {
			return
		}
		for _, s := range states {
			d, err := plan.Decide(s.Observation, r.intent(m))
			if err != nil {
				checkError(t, r, err)
				continue
			}
			checkRecorded(t, r, s, d.Action)
		}
	})
}

// checkRefusal: the twin of the checks, for what they must not let through.
func checkRefusal(t *testing.T, r rpc, m proto.Message, err error) {
	t.Helper()
	if err != nil {
		checkError(t, r, err)
	}
	wrong := ""
	if q, ok := m.(interface{ GetWorkload() *pb.WorkloadRef }); ok && (q.GetWorkload().GetNamespace() == "" || q.GetWorkload().GetName() == "") {
		wrong = "no workload"
	}
	if q, ok := m.(*pb.InitializeRequest); ok {
		if _, bad := record.ParsePolicy(q.GetPolicy()); len(bad) > 0 {
			wrong = bad[0].Field
		}
	}
	if q, ok := m.(interface{ GetReleaseId() string }); ok && r.intent != nil && !record.ValidID(q.GetReleaseId()) {
		wrong = "the id"
	}
	if q, ok := m.(interface{ GetWait() *durationpb.Duration }); ok && r.intent != nil && q.GetWait().AsDuration() < 0 {
		wrong = "the wait"
	}
	if q, ok := m.(interface{ GetWeight() int32 }); ok && (q.GetWeight() < 0 || q.GetWeight() > 100) {
		wrong = "the weight"
	}
	if q, ok := m.(*pb.SetMirrorRequest); ok && (q.GetPercentage() < 0 || q.GetPercentage() > 100) {
		wrong = "the percentage"
	}
	if q, ok := m.(*pb.SetHeaderRouteRequest); ok {
		if _, bad := traffic.ParseHeaderRoute(q.GetName(), q.GetMatches()); len(bad) > 0 {
			wrong = bad[0].Field
		}
	}
	assert.False(t, wrong != "" && status.Code(err) != codes.InvalidArgument, "%s accepts %v, whose %s is wrong: %v", r.name, m, wrong, err)
}

// checkError: each error is of the contract, and a request that is refused says why.
func checkError(t *testing.T, r rpc, err error) {
	t.Helper()
	reason := drivererr.Reason(err)
	assert.False(t, reason == pb.ErrorReason_ERROR_REASON_UNSPECIFIED && status.Code(err) != codes.Canceled,
		"%s fails without a reason: %v", r.name, err)
	assert.False(t, status.Code(err) == codes.Internal || status.Code(err) == codes.Unknown, "%s: %v", r.name, err)
	violations := drivererr.Violations(err)
	assert.Equal(t, len(violations) > 0, reason == pb.ErrorReason_ERROR_REASON_INVALID_REQUEST,
		"%s: %v names %d fields", r.name, err, len(violations))
	for _, v := range violations {
		assert.False(t, v.Field == "" || v.Description == "", "%s: a violation without field or description: %+v", r.name, v)
	}
}

// checkRecorded: what is written is read again as it was meant.
func checkRecorded(t *testing.T, r rpc, s *observe.Snapshot, action plan.Action) {
	t.Helper()
	switch a := action.(type) {
	case plan.SetStable:
		value, err := a.Record.Encode()
		require.NoError(t, err, r.name)
		if _, err := record.DecodeRecord(value); err != nil {
			t.Errorf("%s of a release that is %s records what no driver reads: %v\n%s", r.name, s.Record.Release.Phase, err, value)
		}
	case plan.ScaleCanary:
		if a.Replicas < 0 || a.Replicas > s.Stable.Replicas {
			t.Errorf("%s scales the canary to %d of %d", r.name, a.Replicas, s.Stable.Replicas)
		}
	}
}
