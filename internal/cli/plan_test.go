// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/hosttest"
)

// manifestOf writes a manifest with another object and a LeaderWorkerSet, and returns its path.
func manifestOf(t *testing.T, name, image string, more string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name+".yaml")
	text := `apiVersion: v1
kind: Service
metadata: {name: vllm-leader}
---
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: ` + name + `}
spec:
  replicas: 4
  rolloutStrategy:
    type: RollingUpdate
    rollingUpdateConfiguration: {maxUnavailable: 2, maxSurge: 25%}
  leaderWorkerTemplate:
    size: 3
    workerTemplate:
      spec:
        containers:
        - {name: server, image: "` + image + `", resources: {requests: {"nvidia.com/gpu": 8}}}
` + more
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPlanFiles(t *testing.T) {
	before, after := manifestOf(t, "vllm", "v1", ""), manifestOf(t, "vllm", "v2", "")
	for name, tc := range map[string]struct {
		reason         string
		args           []string
		code           int
		stdout, stderr string
	}{
		"Release": {
			reason: "two manifests are enough", args: []string{"--filename", after, "--from", before, "--batches", "50%", "--startup", "10m"},
			stdout: "batch 1 of 1 (50%)  4    2    6      +2     +6    100..150%  33%           1      10m0s  nvidia.com/gpu 48\n",
		},
		"Native": {
			reason: "the file's own maxUnavailable and maxSurge", args: []string{"--filename", after, "--native", "--startup", "1m", "--stateful-set-max-unavailable"},
			stdout: "rolling update  0    4    4      +1     +3    50..125%  100%          2      2m0s  nvidia.com/gpu 24\n",
		},
		"Flags": {
			reason: "no file is needed", args: []string{"--native", "--replicas", "2", "--max-unavailable", "99%"},
			stdout: "-     1          2         1      old  ...\n",
		},
		"FlagsOverFile": {
			reason: "flags override the file", args: []string{"vllm", "--filename", after, "--native", "--max-surge", "0", "--replicas", "3"},
			stdout: "Workload  vllm (3 groups of 3 pods)",
		},
		"NothingNew": {
			reason: "both files have the same template", args: []string{"--filename", before, "--from", before, "--batches", "1", "--startup", "1m"},
			stdout: "[NothingToRelease]",
		},
		"UnknownStartup": {reason: "start-up times are measured in a cluster only", args: []string{"--filename", after, "--batches", "1"}, stdout: "[StartupUnknown]"},
		"Picture":        {reason: "the picture is of the release", args: []string{"--filename", after, "--batches", "1", "-o", "svg"}, stdout: "<title>vllm: Canary release</title>"},
		"Both0": {
			reason: "LWS refuses it", args: []string{"--native", "--replicas", "4", "--max-unavailable", "0"}, code: exit.Usage, stderr: "both round to 0 of 4 replicas",
		},
		"OtherName": {
			reason: "another workload", args: []string{"other", "--filename", after, "--batches", "1"}, code: exit.Usage, stderr: `has no LeaderWorkerSet "other"`,
		},
		"NoName":     {reason: "neither a name nor a file", args: []string{"--batches", "1"}, code: exit.Usage, stderr: "needs the name of one LeaderWorkerSet"},
		"NoBatches":  {reason: "a release has batches", args: []string{"--filename", after}, code: exit.Usage, stderr: "--batches"},
		"BadBatches": {reason: "batches are validated as in the driver", args: []string{"--filename", after, "--batches", "2,1"}, code: exit.Usage, stderr: "policy.batches[1]"},
		"TooManyGroups": {
			reason: "each stage has each group", args: []string{"--native", "--replicas", "100000000"}, code: exit.Usage, stderr: "at most 500 groups",
		},
		"BadSurge": {
			reason: "not a number", args: []string{"--native", "--replicas", "4", "--max-surge", "few"}, code: exit.Usage, stderr: `--max-surge "few"`,
		},
		"BadFormat":  {reason: "no such format", args: []string{"vllm", "--batches", "1", "-o", "png"}, code: exit.Usage, stderr: "want json, yaml or svg"},
		"BadStartup": {reason: "a negative duration", args: []string{"vllm", "--native", "--startup", "-1s"}, code: exit.Usage, stderr: "--startup"},
		"BadField": {
			reason: "an unknown field is an error", args: []string{"--filename", manifestOf(t, "x", "v1", "  replica: 3\n"), "--native"},
			code: exit.Usage, stderr: "replica",
		},
		"Shorthand": {
			reason: "-f as in preflight", args: []string{"-f", after, "--from", before, "--batches", "1", "--startup", "1m"}, stdout: "batch 1 of 1",
		},
		"Weights": {
			reason: "the shares that the release would request",
			args:   []string{"--filename", after, "--from", before, "--batches", "1,4", "--service", "vllm-leader", "--http-route", "vllm", "--weights", "10,60"},
			stdout: "  10%  ",
		},
		"BadWeights": {
			reason: "weights are validated as in a release",
			args:   []string{"--filename", after, "--batches", "1,4", "--service", "s", "--http-route", "h", "--weights", "lots,60"},
			code:   exit.Usage, stderr: `"lots" is not a whole percentage`,
		},
		"WeightsAlone": {
			reason: "requests are not split", args: []string{"--filename", after, "--batches", "1", "--weights", "50"},
			code: exit.Usage, stderr: "does not split requests",
		},
		"OnlyFrom": {reason: "the new manifest is missing", args: []string{"--from", before, "--native"}, code: exit.Usage, stderr: "--filename"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := runProgram(deadline(t), t, "", append([]string{"plan"}, tc.args...)...)
			if got.code != tc.code || !strings.Contains(got.stdout, tc.stdout) || !strings.Contains(got.stderr, tc.stderr) {
				t.Errorf("%s: lockstep plan %q exits with %d, want %d\nstdout, want %q:\n%s\nstderr, want %q:\n%s",
					tc.reason, tc.args, got.code, tc.code, tc.stdout, got.stdout, tc.stderr, got.stderr)
			}
		})
	}
}

func TestPlanJSON(t *testing.T) {
	for _, frames := range []bool{false, true} {
		args := []string{"plan", "--native", "--replicas", "4", "--startup", "1m", "-o", "json"}
		if frames {
			args = append(args, "--frames")
		}
		got := runProgram(deadline(t), t, "", args...)
		var document struct {
			Event string          `json:"event"`
			Plan  json.RawMessage `json:"plan"`
		}
		if err := json.Unmarshal([]byte(got.stdout), &document); err != nil {
			t.Fatalf("%v: %s", err, got.stdout)
		}
		r := &pb.PlanResponse{}
		if err := protojson.Unmarshal(document.Plan, r); err != nil {
			t.Fatal(err)
		}
		if document.Event != "plan" || len(r.GetSteps()) != 1 || (len(r.GetFrames()) > 0) != frames {
			t.Errorf("frames %t: %s", frames, got.stdout)
		}
	}
}

func TestPlanUnsupported(t *testing.T) {
	got := runProgram(deadline(t), t, hosttest.Serve(t, hosttest.New()).Address, "plan", "vllm", "--batches", "1")
	if got.code != exit.Error || !strings.Contains(got.stderr, "does not serve Plan") {
		t.Errorf("exit code %d:\n%s", got.code, got.stderr)
	}
}
