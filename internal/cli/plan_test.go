// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/hosttest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// planner is a driver that plans what its response says.
type planner struct {
	*hosttest.Driver

	response *pb.PlanResponse
}

func (p planner) GetDriverInfo(ctx context.Context, req *pb.GetDriverInfoRequest) (*pb.GetDriverInfoResponse, error) {
	info, err := p.Driver.GetDriverInfo(ctx, req)
	info.Capabilities = append(info.GetCapabilities(), pb.Capability_CAPABILITY_PLAN)
	return info, err
}

func (p planner) Plan(context.Context, *pb.PlanRequest) (*pb.PlanResponse, error) {
	return p.response, nil
}

func TestPlan(t *testing.T) {
	response := &pb.PlanResponse{Style: pb.Style_STYLE_CANARY, Replicas: 4, Size: 3, Steps: []*pb.PlanStep{
		{Name: "batch 1 of 2 (1)", TrafficWeight: 20}, {Name: "batch 2 of 2 (4)", TrafficWeight: 50}, {Name: "promote", TrafficWeight: 100},
	}, Findings: []*pb.Finding{{
		Rule: "PreStopMissing", Severity: pb.Severity_SEVERITY_WARNING, Object: &pb.ObjectRef{Kind: "LeaderWorkerSet", Name: "vllm"}, Message: "no hook", Fix: "Give one",
	}}}
	blocked := &pb.PlanResponse{Blockers: []*pb.Warning{{Code: "QuotaExceeded", Message: "no room"}}}
	routes := []string{"--batches", "1,4", "--service", "vllm-leader", "--http-route", "vllm"}
	for name, tc := range map[string]struct {
		reason         string
		response       *pb.PlanResponse
		args           []string
		code           int
		stdout, stderr string
	}{
		"Shares":   {reason: "the driver's shares", response: response, args: []string{"vllm", "--batches", "1,4"}, stdout: "  50%  "},
		"Weights":  {reason: "the shares that the release would request", response: response, args: append(routes, "vllm", "--weights", "10,60"), stdout: "  60%  "},
		"Findings": {reason: "those of preflight", response: response, args: []string{"vllm", "--batches", "1"}, stdout: "preflight warning: no hook. Give one [PreStopMissing]"},
		"Blocked": {
			reason: "the exit code of a release that would be refused", response: blocked, args: []string{"vllm", "--batches", "1"},
			code: exit.Found, stdout: "blocked: no room [QuotaExceeded]", stderr: "the release is blocked",
		},
		"NoName":     {reason: "which workload", args: []string{"--batches", "1"}, code: exit.Usage, stderr: "needs the name of one LeaderWorkerSet"},
		"NoBatches":  {reason: "one canary group by default", response: response, args: []string{"vllm", "--service", "s", "--weights", "1,2"}, code: exit.Usage, stderr: "2"},
		"Counts":     {reason: "as in a release", response: &pb.PlanResponse{Replicas: 4}, args: []string{"vllm", "--batches", "25,50"}, code: exit.Usage, stderr: "write --batches 25%,50%"},
		"BadFormat":  {reason: "no such format", args: []string{"vllm", "--batches", "1", "-o", "png"}, code: exit.Usage, stderr: "want json or yaml"},
		"BadStartup": {reason: "a negative duration", args: []string{"vllm", "--batches", "1", "--startup", "-1s"}, code: exit.Usage, stderr: "--startup"},
		"BadWeights": {
			reason: "weights are validated as in a release", args: append(routes, "vllm", "--weights", "lots,60"),
			code: exit.Usage, stderr: `"lots" is not a whole percentage`,
		},
		"WeightsAlone": {
			reason: "requests are not split", args: []string{"vllm", "--batches", "1", "--weights", "50"},
			code: exit.Usage, stderr: "does not split requests",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := hosttest.Serve(t, planner{hosttest.New(), tc.response}).Address
			got := runProgram(deadline(t), t, address, slices.Concat([]string{"plan"}, tc.args)...)
			assert.True(t, got.code == tc.code && strings.Contains(got.stdout, tc.stdout) && strings.Contains(got.stderr, tc.stderr),
				"%s: lockstep plan %q exits with %d, want %d\nstdout, want %q:\n%s\nstderr, want %q:\n%s", tc.reason, tc.args, got.code, tc.code, tc.stdout, got.stdout, tc.stderr, got.stderr)
		})
	}
}

func TestPlanJSON(t *testing.T) {
	address := hosttest.Serve(t, planner{hosttest.New(), &pb.PlanResponse{Steps: []*pb.PlanStep{{Name: "promote"}}}}).Address
	got := runProgram(deadline(t), t, address, "plan", "vllm", "--batches", "1", "-o", "json")
	r := &pb.PlanResponse{}
	err := protojson.Unmarshal([]byte(got.stdout), r)
	assert.True(t, err == nil && len(r.GetSteps()) == 1, "%v: %s", err, got.stdout)
}

func TestPlanUnsupported(t *testing.T) {
	got := runProgram(deadline(t), t, hosttest.Serve(t, hosttest.New()).Address, "plan", "vllm", "--batches", "1")
	assert.True(t, got.code == exit.Error && strings.Contains(got.stderr, "does not serve Plan"), "exit code %d:\n%s", got.code, got.stderr)
}
