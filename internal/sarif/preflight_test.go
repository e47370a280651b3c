// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package sarif

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func response() *pb.PreflightResponse {
	return &pb.PreflightResponse{
		Findings: []*pb.Finding{
			{
				Rule: "AllUnavailable", Severity: pb.Severity_SEVERITY_ERROR, Object: &pb.ObjectRef{Kind: "LeaderWorkerSet", Namespace: "default", Name: "vllm"},
				Field: "spec.rolloutStrategy", Message: "all at once", Why: "Nothing serves", Fix: "Set 1",
			},
			{
				Rule: "FromTheFuture", Severity: 9, Object: &pb.ObjectRef{Kind: "Node", Name: "n1"}, Message: "something new", Why: "Because", Fix: "Do",
			},
			{Rule: "GitOpsTracked", Severity: pb.Severity_SEVERITY_INFO, Object: &pb.ObjectRef{Kind: "LeaderWorkerSet", Namespace: "default", Name: "vllm"}, Message: "m", Why: "w", Fix: "f"},
		},
		Unchecked: []*pb.Unchecked{{Subject: "nodes", Reason: "forbidden", Rules: []string{"NodesLackRoom"}}},
	}
}

// required has the properties that the schema of SARIF 2.1.0 requires of an object, by the object's path.
var required = map[string][]string{
	"":                       {"version", "runs"},
	"runs":                   {"tool"},
	"runs.tool":              {"driver"},
	"runs.tool.driver":       {"name"},
	"runs.tool.driver.rules": {"id"},
	"runs.tool.driver.rules.shortDescription":             {"text"},
	"runs.tool.driver.rules.fullDescription":              {"text"},
	"runs.tool.driver.rules.help":                         {"text"},
	"runs.invocations":                                    {"executionSuccessful"},
	"runs.invocations.toolExecutionNotifications":         {"message"},
	"runs.invocations.toolExecutionNotifications.message": {"text"},
	"runs.results":                                             {"message"},
	"runs.results.message":                                     {"text"},
	"runs.results.locations.physicalLocation":                  {"artifactLocation"},
	"runs.results.locations.physicalLocation.artifactLocation": {"uri"},
	"runs.results.locations.physicalLocation.region":           {"startLine"},
	"runs.results.locations.logicalLocations":                  {"fullyQualifiedName"},
	"runs.results.locations":                                   {"logicalLocations"},
	"runs.tool.driver.rules.defaultConfiguration":              {"level"},
}

// walk fails the test where a required property is missing or empty, and returns the paths of all objects.
func walk(t *testing.T, path string, v any) []string {
	t.Helper()
	var paths []string
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			paths = append(paths, walk(t, path, item)...)
		}
	case map[string]any:
		paths = append(paths, path)
		if _, known := required[path]; !known {
			t.Errorf("unexpected object at %q", path)
		}
		for _, name := range required[path] {
			if value, ok := v[name]; !ok || value == "" {
				t.Errorf("%s has no %s", path, name)
			}
		}
		if l, ok := v["level"]; ok && !slices.Contains([]any{"none", "note", "warning", "error"}, l) {
			t.Errorf("%s: level %v", path, l)
		}
		for name, value := range v {
			paths = append(paths, walk(t, strings.TrimPrefix(path+"."+name, "."), value)...)
		}
	}
	return paths
}

func TestPreflight(t *testing.T) {
	text, err := Preflight("v1", response(), func(ref *pb.ObjectRef, field string) (string, int) {
		if ref.GetKind() == "Node" {
			return "", 0
		}
		return "dir/a b.yaml", len(field)
	})
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	seen := walk(t, "", got)
	for path := range required {
		if !slices.Contains(seen, path) {
			t.Errorf("no object at %q", path)
		}
	}
	if got["version"] != "2.1.0" {
		t.Errorf("version %v", got["version"])
	}
	var log sarifLog
	if err := json.Unmarshal(text, &log); err != nil {
		t.Fatal(err)
	}
	rules, results := log.Runs[0].Tool.Driver.Rules, log.Runs[0].Results
	var lines []string
	for _, r := range results {
		line := fmt.Sprintf("%s %s %s", r.RuleID, r.Level, r.Locations[0].Logical[0].FullyQualifiedName)
		if p := r.Locations[0].Physical; p != nil {
			line += " " + p.Artifact.URI
			if p.Region != nil {
				line += fmt.Sprintf(":%d", p.Region.StartLine)
			}
		}
		lines = append(lines, line)
		if rules[r.RuleIndex].ID != r.RuleID {
			t.Errorf("rule %d is %s, not %s", r.RuleIndex, rules[r.RuleIndex].ID, r.RuleID)
		}
	}
	want := []string{
		"AllUnavailable error LeaderWorkerSet default/vllm spec.rolloutStrategy dir/a%20b.yaml:20",
		"FromTheFuture warning Node n1",
		"GitOpsTracked note LeaderWorkerSet default/vllm dir/a%20b.yaml",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}

// Without findings the list of results is empty, not absent: absent means that the tool did not run.
func TestPreflightWithoutFindings(t *testing.T) {
	text, err := Preflight("v1", &pb.PreflightResponse{}, nil)
	if err != nil || !strings.Contains(string(text), `"results": []`) {
		t.Errorf("%v\n%s", err, text)
	}
}
