// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/protobuf/encoding/protojson"

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

func TestPreflightFiles(t *testing.T) {
	const rules = "../../lwsdriver/preflight/testdata/"
	fail := func(rule string) string { return rules + rule + "/fail.yaml" }
	for name, tc := range map[string]struct {
		reason         string
		args           []string
		code           int
		stdout, stderr []string
	}{
		"Warning": {
			reason: "a warning does not fail by default", args: []string{"-f", fail("PreStopMissing")},
			stdout: []string{
				"Workload  default/vllm\n", "\nwarning   no container of the leader has a preStop hook [PreStopMissing]\n          LeaderWorkerSet default/vllm, spec.",
				"\n     why  A deleted pod", "\n     fix  Give", "not checked: ServiceSelectsWorkers, ServiceExcludesAdded (needs Services): there are none in the files\n", "\n0 errors, 1 warning, 0 notes\n",
			},
		},
		"FailOnWarning": {reason: "a warning fails on request", args: []string{"-f", fail("PreStopMissing"), "--fail-on", "warning"}, code: exit.Found, stderr: []string{"1 found of severity warning or above (--fail-on)"}},
		"FailOnNote":    {reason: "a note fails on request", args: []string{"-f", fail("GitOpsTracked"), "--fail-on", "note"}, code: exit.Found, stderr: []string{"1 found"}},
		"Error":         {reason: "an error fails by default", args: []string{"-f", fail("NoCapacityToRoll")}, code: exit.Found, stdout: []string{"error "}, stderr: []string{"1 found"}},
		"Never":         {reason: "nothing fails with never", args: []string{"-f", fail("NoCapacityToRoll"), "--fail-on", "never"}, stdout: []string{"[NoCapacityToRoll]"}},
		"OtherFiles": {
			reason: "all files are one input", args: []string{"-f", fail("PreStopMissing"), "-f", rules + "../../../config/base/role.yaml", "--fail-on", "never"},
			stdout: []string{"[PreStopMissing]"},
		},
		"Policy": {
			reason: "the release's flags are used", args: []string{"-f", fail("QuotaExceeded"), "--batches", "50%"},
			stdout: []string{"2 groups (4 pods) more do not fit"},
		},
		"StyleAlone": {reason: "a release has the same default", args: []string{"-f", fail("QuotaExceeded"), "--style", "blue-green"}, code: exit.Found, stdout: []string{"4 groups (8 pods) more do not fit"}},
		"NoFlags":    {reason: "a release without flags has one canary group", args: []string{"-f", fail("ServiceExcludesAdded")}, stdout: []string{"[ServiceExcludesAdded]"}},
		"Expectations": {
			reason: "expectations that are in no manifest", args: []string{"-f", fail("PreStopMissing"), "--longest-request", "5m"},
			stdout: []string{"[GracePeriodBelowLongestRequest]"},
		},
		"HeaderRoutes": {
			reason: "a header route is refused for a rule with a name", code: exit.Found, stdout: []string{"error ", "[RouteRuleNamed]"},
			args: []string{"-f", fail("RouteRuleNamed"), "--batches", "50%", "--service", "vllm", "--http-route", "vllm", "--canary-cookie", "tester"},
		},
		"NoHeaderRoutes": {
			reason: "weights do not need a rule without a name", stdout: []string{"note ", "[RouteRuleNamed]"},
			args: []string{"-f", fail("RouteRuleNamed"), "--batches", "50%", "--service", "vllm", "--http-route", "vllm"},
		},
		"NoSuchWorkload": {reason: "another name", args: []string{"other", "-f", fail("PreStopMissing")}, code: exit.Usage, stderr: []string{"no LeaderWorkerSet other"}},
		"NoFile":         {reason: "the file does not exist", args: []string{"-f", "nowhere.yaml"}, code: exit.Error, stderr: []string{"nowhere.yaml"}},
		"NoName":         {reason: "neither name nor file", code: exit.Usage, stderr: []string{"needs the name of one LeaderWorkerSet"}},
		"BadFailOn":      {reason: "no such severity", args: []string{"-f", fail("PreStopMissing"), "--fail-on", "fatal"}, code: exit.Usage, stderr: []string{"--fail-on"}},
		"BadFormat":      {reason: "no such format", args: []string{"vllm", "-o", "xml"}, code: exit.Usage, stderr: []string{"want json or yaml"}},
		"BadPolicy":      {reason: "the policy is validated as in the driver", args: []string{"-f", fail("PreStopMissing"), "--batches", "2,1"}, code: exit.Usage, stderr: []string{"--batches, number 2: "}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := runProgram(deadline(t), t, "", append([]string{"preflight"}, tc.args...)...)
			assert.Equal(t, tc.code, got.code, "%s: exit code %d, want %d\n%s%s", tc.reason, got.code, tc.code, got.stdout, got.stderr)
			for _, words := range tc.stdout {
				assert.Contains(t, got.stdout, words, "%s: stdout has no %q:\n%s", tc.reason, words, got.stdout)
			}
			for _, words := range tc.stderr {
				assert.Contains(t, got.stderr, words, "%s: stderr has no %q:\n%s", tc.reason, words, got.stderr)
			}
		})
	}
}

// With -o the output is the contract's response.
func TestPreflightDocuments(t *testing.T) {
	const file = "../../lwsdriver/preflight/testdata/ReadinessProbeMissing/fail.yaml"
	got := runProgram(deadline(t), t, "", "preflight", "-f", file, "-o", "json")
	r := &pb.PreflightResponse{}
	if err := protojson.Unmarshal([]byte(got.stdout), r); err != nil || len(r.GetFindings()) != 1 || r.GetFindings()[0].GetRule() != "ReadinessProbeMissing" {
		t.Errorf("%v: %s", err, got.stdout)
	}
	two := runProgram(deadline(t), t, "", "preflight", "-f", file, "-f", file, "-o", "yaml")
	assert.True(t, strings.Count(two.stdout, "\n  name: vllm\n") == 2 && strings.Count(two.stdout, "---\n") == 2,
		"want two documents, each with its name:\n%s", two.stdout)
}

func TestPreflightUnsupported(t *testing.T) {
	got := runProgram(deadline(t), t, hosttest.Serve(t, hosttest.New()).Address, "preflight", "vllm")
	assert.True(t, got.code == exit.Error && strings.Contains(got.stderr, "does not serve Preflight"), "exit code %d:\n%s", got.code, got.stderr)
}
