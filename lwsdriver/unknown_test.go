// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

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
