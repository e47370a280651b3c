// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record/history"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// A defect that a workload meets is where its release stands. Conflicts in a row are reported, but not as a failure.
func TestContextReportsErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		patch    func() error
		failed   bool
		reported string
	}{
		"a panic": {func() error { panic("a defect") }, true, ""},
		"conflicts": {func() error {
			return apierrors.NewConflict(schema.GroupResource{Resource: "leaderworkersets"}, "vllm", errors.New("changed"))
		}, false, "will be tried again"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t, lwstest.WithRecord(t, lwstest.Unrecorded(), record.Record{Saved: record.Native(record.Hold())}))
			b.FailPatches(tt.patch)
			b.run()
			b.eventually("the context reports it", func() bool {
				c, _, err := b.contextOf(lwstest.VLLM, "", false)
				failed := c.GetState() == pb.State_STATE_FAILED
				return err == nil && strings.Contains(c.GetMessage(), tt.reported) && failed == tt.failed && (!failed || c.GetReason() == "Internal")
			})
		})
	}
}

// A request whose write failed may have been counted, so the loop decides again.
func TestFailedWriteIsDecidedAgain(t *testing.T) {
	b := newFixture(t, lwstest.Unrecorded())
	b.FailPatches(func() error { return errors.New("broken") })
	if _, err := b.mutate(t.Context(), lwstest.VLLM, plan.Adopt{}); err == nil || b.engine.Idle() {
		t.Errorf("error %v, and the queue is empty: %t", err, b.engine.Idle())
	}
	refused := newFixture(t, lwstest.Unrecorded())
	if _, err := refused.mutate(t.Context(), lwstest.VLLM, plan.Promote{}); err == nil || !refused.engine.Idle() {
		t.Errorf("error %v of a request that is refused, and the queue is empty: %t", err, refused.engine.Idle())
	}
}

// TestOutcomeIsSavedBeforeRecord checks that a request which ends the record of a release does not lose its outcome, although the loop
// has not saved it yet.
func TestOutcomeIsSavedBeforeRecord(t *testing.T) {
	w := lwstest.InPhase(t, record.Promoted)
	entry := lwstest.HistoryRevision(t, plan.Entry{Revision: "new", Number: 2, At: lwstest.Noon, Release: "r1"}, "vllm:2")
	b := newFixtureOn(t, fake.NewClientset(entry, lwstest.Revision(t, w, "new")), lwstest.NoRoutes(), w)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { b.engine.Observer.Run(ctx); close(ended) }() // without the loop
	defer func() { stop(); <-ended }()
	b.eventually("caches are filled", func() bool {
		o := b.engine.Observer
		return o.Caches.Synced() && o.History.Synced() && !o.Autoscalers.Pending()
	})
	_, err := b.mutate(ctx, lwstest.VLLM, plan.Disown{})
	require.NoError(t, err)
	b.eventually("the outcome is saved", func() bool {
		got, err := b.Core.AppsV1().ControllerRevisions(entry.Namespace).Get(ctx, entry.Name, metav1.GetOptions{})
		return err == nil && history.Read(got).Outcome == plan.Promoted
	})
}

// What a newer host asks for and this driver does not know is refused, wherever in the policy it is.
func TestUnknownFieldsAreRefused(t *testing.T) {
	newer := protowire.AppendVarint(protowire.AppendTag(nil, 1234, protowire.VarintType), 1)
	for _, tt := range []struct {
		field string
		at    func(*pb.ReleasePolicy) proto.Message
	}{
		{"policy", func(p *pb.ReleasePolicy) proto.Message { return p }},
		{"policy.canary_leader_metadata", func(p *pb.ReleasePolicy) proto.Message { return p.CanaryLeaderMetadata }},
		{"policy.min_ready", func(p *pb.ReleasePolicy) proto.Message { return p.MinReady }},
		{"policy.traffic", func(p *pb.ReleasePolicy) proto.Message { return p.Traffic }},
	} {
		t.Run(tt.field, func(t *testing.T) {
			p := &pb.ReleasePolicy{
				Style: pb.Style_STYLE_CANARY, Batches: []string{"100%"}, MinReady: durationpb.New(1),
				CanaryLeaderMetadata: &pb.PodMetadata{Labels: map[string]string{"a": "b"}}, Traffic: &pb.TrafficPolicy{StableService: "vllm", HttpRoutes: []string{"vllm"}},
			}
			request := &pb.InitializeRequest{ReleaseId: "r1", Policy: p}
			require.NoError(t, checkInitialize(request, record.Limits{Metadata: []string{"a"}}), "refused already")
			tt.at(p).ProtoReflect().SetUnknown(newer)
			err := checkInitialize(request, record.Limits{Metadata: []string{"a"}})
			got := drivererr.Reason(err)
			assert.Equal(t, pb.ErrorReason_ERROR_REASON_INVALID_REQUEST, got, "reason %s, want INVALID_REQUEST", got)
			if !slices.ContainsFunc(drivererr.Violations(err), func(v drivererr.FieldViolation) bool {
				return v.Field == tt.field && strings.Contains(v.Description, "1234")
			}) {
				t.Errorf("violations %v, want one of %s with number 1234", drivererr.Violations(err), tt.field)
			}
		})
	}
}

func TestUnknownFieldsOfLists(t *testing.T) {
	newer := protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1)
	group := &pb.Group{}
	group.ProtoReflect().SetUnknown(newer)
	got := unknownFields("context", (&pb.BatchContext{Groups: []*pb.Group{{}, group}}).ProtoReflect())
	assert.True(t, len(got) == 1 && got[0].Field == "context.groups[1]", "violations %v", got)
	assert.Empty(t, unknownFields("policy", (*pb.ReleasePolicy)(nil).ProtoReflect()), "no policy")
}

// A deadline that is longer than the operator allows is refused wherever a policy is judged.
func TestLongDeadlineIsRefused(t *testing.T) {
	bounds := record.Limits{ProgressDeadline: record.DefaultMaxProgressDeadline}
	p := inBatches(pb.Style_STYLE_CANARY, "1")
	p.ProgressDeadline = durationpb.New(bounds.ProgressDeadline + 1)
	for name, err := range map[string]error{
		"Initialize": checkInitialize(&pb.InitializeRequest{ReleaseId: "r1", Policy: p}, bounds),
		"Plan":       checkPlan(&pb.PlanRequest{Policy: p}, bounds),
		"Preflight":  checkPreflight(&pb.PreflightRequest{Policy: p}, bounds),
	} {
		if bad := drivererr.Violations(err); len(bad) != 1 || bad[0].Field != "policy.progress_deadline" {
			t.Errorf("%s: %v, want a violation of policy.progress_deadline", name, err)
		}
	}
}
