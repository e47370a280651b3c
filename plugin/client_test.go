// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
)

// scripted answers as the test says, and counts the calls.
type scripted struct {
	pb.UnimplementedWorkloadDriverServer
	pb.UnimplementedTrafficRouterServer

	info     *pb.GetDriverInfoResponse
	context  *pb.BatchContext
	finalize *pb.FinalizeResponse
	weight   *pb.SetWeightResponse
	findings []*pb.Finding
	err      error
	calls    int
}

func (s *scripted) GetDriverInfo(context.Context, *pb.GetDriverInfoRequest) (*pb.GetDriverInfoResponse, error) {
	if s.info != nil {
		return s.info, nil
	}
	return infoWith(pb.Capability_CAPABILITY_RELEASE, pb.Capability_CAPABILITY_WATCH, pb.Capability_CAPABILITY_TRAFFIC_WEIGHT), nil
}

func (s *scripted) CalculateBatchContext(
	context.Context, *pb.CalculateBatchContextRequest,
) (*pb.CalculateBatchContextResponse, error) {
	s.calls++
	return &pb.CalculateBatchContextResponse{Context: s.context}, s.err
}

func (s *scripted) WatchBatchContext(
	_ *pb.WatchBatchContextRequest, stream grpc.ServerStreamingServer[pb.WatchBatchContextResponse],
) error {
	s.calls++
	if s.context != nil {
		if err := stream.Send(&pb.WatchBatchContextResponse{Context: s.context}); err != nil {
			return err
		}
	}
	return s.err
}

func (s *scripted) Preflight(context.Context, *pb.PreflightRequest) (*pb.PreflightResponse, error) {
	return &pb.PreflightResponse{Findings: s.findings}, s.err
}

func (s *scripted) Finalize(context.Context, *pb.FinalizeRequest) (*pb.FinalizeResponse, error) {
	return s.finalize, s.err
}

func (s *scripted) SetWeight(context.Context, *pb.SetWeightRequest) (*pb.SetWeightResponse, error) {
	return s.weight, s.err
}

func infoWith(capabilities ...pb.Capability) *pb.GetDriverInfoResponse {
	return &pb.GetDriverInfoResponse{
		Name: "scripted.test", Version: "v1", Kinds: []*pb.WorkloadKind{{Kind: "LeaderWorkerSet"}},
		Styles: []pb.Style{pb.Style_STYLE_CANARY}, Capabilities: capabilities,
	}
}

// goodContext is one that the facade accepts.
func goodContext() *pb.BatchContext {
	return &pb.BatchContext{
		Workload: &pb.WorkloadRef{Namespace: "default", Name: "vllm"},
		State:    pb.State_STATE_UPGRADING, Reason: "GroupsNotReady",
		Replicas: 4, Size: 2, Batches: 2, CurrentBatch: proto.Int32(1), Planned: 2, Desired: 2,
		Updated: 2, UpdatedReady: 1, StableReady: 4, Total: 6, TrafficWeight: 25,
		Groups: []*pb.Group{{Role: pb.GroupRole_GROUP_ROLE_STABLE, Leader: "vllm-0", Pods: 2, ReadyPods: 2}},
	}
}

func TestClientRefusesContextsThatBreakTheContract(t *testing.T) {
	tests := []struct {
		name   string
		reason string
		mutate func(*pb.BatchContext)
		want   codes.Code
	}{
		{"good", "nothing is wrong", func(*pb.BatchContext) {}, codes.OK},
		{"newer state", "a driver may be newer than its host", func(c *pb.BatchContext) { c.State = 99 }, codes.OK},
		{"newer role", "a driver may be newer than its host", func(c *pb.BatchContext) { c.Groups[0].Role = 99 }, codes.OK},
		{"no workload", "it is required", func(c *pb.BatchContext) { c.Workload = nil }, codes.Internal},
		{"no state", "a host would not know what to do", func(c *pb.BatchContext) { c.State = 0 }, codes.Internal},
		{"no reason", "it is never empty", func(c *pb.BatchContext) { c.Reason = "" }, codes.Internal},
		{"negative", "a count of groups", func(c *pb.BatchContext) { c.Desired = -1 }, codes.Internal},
		{"more ready than there are", "ready ones are some of them", func(c *pb.BatchContext) { c.UpdatedReady = 3 }, codes.Internal},
		{"more updated than exist", "updated ones are some of all", func(c *pb.BatchContext) { c.Updated, c.Total = 7, 6 }, codes.Internal},
		{"counted twice", "no group is at both revisions", func(c *pb.BatchContext) { c.Total = 5 }, codes.Internal},
		{"plan over replicas", "an autoscaler has removed groups since", func(c *pb.BatchContext) { c.Planned = 5 }, codes.OK},
		{"batch out of range", "batches count from 0", func(c *pb.BatchContext) { c.CurrentBatch = proto.Int32(2) }, codes.Internal},
		{"weight", "a percentage", func(c *pb.BatchContext) { c.TrafficWeight = 101 }, codes.Internal},
		{"group without leader", "it is required", func(c *pb.BatchContext) { c.Groups[0].Leader = "" }, codes.Internal},
		{"group without role", "it is required", func(c *pb.BatchContext) { c.Groups[0].Role = 0 }, codes.Internal},
		{"group over full", "ready pods are some of its pods", func(c *pb.BatchContext) { c.Groups[0].ReadyPods = 3 }, codes.Internal},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			driver := &scripted{context: goodContext()}
			tt.mutate(driver.context)
			client := plugintest.Connect(t, driver, driver)
			_, err := client.CalculateBatchContext(t.Context(), &pb.CalculateBatchContextRequest{})
			assert.Equal(t, tt.want, status.Code(err), "%s: Calculate: %v, want %v", tt.reason, err, tt.want)
			for _, err := range client.WatchBatchContext(t.Context(), &pb.WatchBatchContextRequest{}) {
				assert.Equal(t, tt.want, status.Code(err), "%s: Watch: %v, want %v", tt.reason, err, tt.want)
			}
		})
	}
}

func TestClientRefusesOtherResponsesThatBreakTheContract(t *testing.T) {
	underWay := goodContext()
	underWay.State = pb.State_STATE_PROMOTING
	done := goodContext()
	done.State = pb.State_STATE_COMPLETED
	driver := &scripted{}
	client := plugintest.Connect(t, driver, driver)
	ctx := t.Context()
	configured := pb.Action_ACTION_CONFIGURED
	finalizes := []struct {
		name string
		resp *pb.FinalizeResponse
		want codes.Code
	}{
		{"done", &pb.FinalizeResponse{Action: configured, Context: done, Done: true}, codes.OK},
		{"under way", &pb.FinalizeResponse{Action: configured, Context: underWay}, codes.OK},
		{"done but under way", &pb.FinalizeResponse{Action: configured, Context: underWay, Done: true}, codes.Internal},
		{"no action", &pb.FinalizeResponse{Context: done, Done: true}, codes.Internal},
		{"no context", &pb.FinalizeResponse{Action: configured, Done: true}, codes.Internal},
	}
	for _, tt := range finalizes {
		driver.finalize = tt.resp
		_, err := client.Finalize(ctx, &pb.FinalizeRequest{})
		assert.Equal(t, tt.want, status.Code(err), "Finalize %s: %v, want %v", tt.name, err, tt.want)
	}
	driver.weight = &pb.SetWeightResponse{Action: configured}
	_, err := client.SetWeight(ctx, &pb.SetWeightRequest{})
	assert.Equal(t, codes.Internal, status.Code(err), "SetWeight neither verified nor with a reason: %v, want INTERNAL", err)
}

func TestClientRefusesBrokenInfo(t *testing.T) {
	good := infoWith(pb.Capability_CAPABILITY_RELEASE)
	for name, mutate := range map[string]func(*pb.GetDriverInfoResponse){
		"name":         func(i *pb.GetDriverInfoResponse) { i.Name = "" },
		"version":      func(i *pb.GetDriverInfoResponse) { i.Version = "" },
		"kinds":        func(i *pb.GetDriverInfoResponse) { i.Kinds = nil },
		"styles":       func(i *pb.GetDriverInfoResponse) { i.Styles = nil },
		"capabilities": func(i *pb.GetDriverInfoResponse) { i.Capabilities = nil },
	} {
		info := proto.CloneOf(good)
		mutate(info)
		client, err := plugin.Dial(t.Context(), plugintest.Serve(t, &scripted{info: info}, nil), plugin.DialOptions{})
		if err == nil {
			_ = client.Close()
		}
		assert.Equal(t, codes.Internal, status.Code(err), "without %s: %v, want INTERNAL", name, err)
	}
}

func TestClientKeepsCodesAndDetails(t *testing.T) {
	ctx := t.Context()
	for number := range pb.ErrorReason_name {
		reason := pb.ErrorReason(number)
		driver := &scripted{err: drivererr.WithMetadata(drivererr.New(reason, "default/vllm"), "object", "default/vllm")}
		client := plugintest.Connect(t, driver, driver)
		_, callErr := client.CalculateBatchContext(ctx, &pb.CalculateBatchContextRequest{})
		errs := []error{callErr}
		for _, err := range client.WatchBatchContext(ctx, &pb.WatchBatchContextRequest{}) {
			errs = append(errs, err)
		}
		require.Len(t, errs, 2, "%v: watch yielded %d items, want the error once", reason, len(errs)-1)
		for _, err := range errs {
			assert.True(t, plugin.Reason(err) == reason && status.Code(err) == drivererr.Code(reason),
				"%v arrived as %v, %v", reason, plugin.Reason(err), status.Code(err))
			assert.Equal(t, "default/vllm", drivererr.Metadata(err)["object"], "%v lost its metadata", reason)
			assert.Equal(t, "scripted.test: default/vllm", status.Convert(err).Message(), "message")
		}
	}
}

func TestClientRejectsUnsupportedRPCsWithoutCalling(t *testing.T) {
	driver := &scripted{info: infoWith(pb.Capability_CAPABILITY_ADOPT), context: goodContext()}
	client := plugintest.Connect(t, driver, nil)
	ctx := t.Context()
	_, calculate := client.CalculateBatchContext(ctx, &pb.CalculateBatchContextRequest{})
	_, plan := client.Plan(ctx, &pb.PlanRequest{})
	_, weight := client.SetWeight(ctx, &pb.SetWeightRequest{})
	var watch error
	for _, err := range client.WatchBatchContext(ctx, &pb.WatchBatchContextRequest{}) {
		watch = err
	}
	for name, err := range map[string]error{"calculate": calculate, "plan": plan, "weight": weight, "watch": watch} {
		assert.True(t, plugin.Reason(err) == pb.ErrorReason_ERROR_REASON_UNSUPPORTED && status.Code(err) == codes.Unimplemented,
			"%s: %v, want UNSUPPORTED", name, err)
	}
	assert.Zero(t, driver.calls, "the driver was called %d times", driver.calls)
}

func TestWatchFollowsUntilTheLoopEnds(t *testing.T) {
	driver := plugintest.NewFakeDriver()
	driver.SetWorkload("default", "vllm", 4, "rev-1")
	client := plugintest.Connect(t, driver, driver)
	ref := &pb.WorkloadRef{Namespace: "default", Name: "vllm"}
	var states []pb.State
	for c, err := range client.WatchBatchContext(t.Context(), &pb.WatchBatchContextRequest{Workload: ref}) {
		require.NoError(t, err)
		states = append(states, c.GetState())
		if len(states) == 2 {
			break
		}
		_, err := client.Adopt(t.Context(), &pb.AdoptRequest{Workload: ref})
		require.NoError(t, err)
	}
	assert.Empty(t, cmp.Diff([]pb.State{pb.State_STATE_UNMANAGED, pb.State_STATE_HOLDING}, states), "states (-want +got)")
}

func TestInfoIsACopy(t *testing.T) {
	client := plugintest.Connect(t, plugintest.NewFakeDriver(), nil)
	want := client.Info()
	client.Info().Capabilities = nil
	assert.Empty(t, cmp.Diff(want, client.Info(), protocmp.Transform()), "a caller changed the client's info (-want +got)")
}

// An empty finding is the driver's mistake, and not shown to users.
func TestClientRefusesBrokenFindings(t *testing.T) {
	good := func() *pb.Finding {
		return &pb.Finding{Rule: "R", Severity: pb.Severity_SEVERITY_INFO, Object: &pb.ObjectRef{Kind: "Node", Name: "n1"}, Message: "m"}
	}
	for name, tt := range map[string]struct {
		mutate func(*pb.Finding)
		want   codes.Code
	}{
		"good":          {func(*pb.Finding) {}, codes.OK},
		"newer":         {func(f *pb.Finding) { f.Severity = 99 }, codes.OK},
		"no rule":       {func(f *pb.Finding) { f.Rule = "" }, codes.Internal},
		"no severity":   {func(f *pb.Finding) { f.Severity = 0 }, codes.Internal},
		"no object":     {func(f *pb.Finding) { f.Object = nil }, codes.Internal},
		"nameless":      {func(f *pb.Finding) { f.Object.Name = "" }, codes.Internal},
		"says nothing":  {func(f *pb.Finding) { f.Message = "" }, codes.Internal},
		"not a finding": {func(f *pb.Finding) { proto.Reset(f) }, codes.Internal},
	} {
		f := good()
		tt.mutate(f)
		client := plugintest.Connect(t, &scripted{info: infoWith(pb.Capability_CAPABILITY_PREFLIGHT), findings: []*pb.Finding{good(), f}}, nil)
		_, err := client.Preflight(t.Context(), &pb.PreflightRequest{})
		assert.Equal(t, tt.want, status.Code(err), "%s: %v, want %v", name, err, tt.want)
	}
}
