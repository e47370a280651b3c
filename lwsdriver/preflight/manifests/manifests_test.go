// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"strings"
	"testing"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const whole = `# A comment is no object.
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Node
  metadata: {name: n1}
- apiVersion: leaderworkerset.x-k8s.io/v1
  kind: LeaderWorkerSet
  metadata:
    name: vllm
    annotations:
      lockstep.dev/release: '{"version": 1, "saved": {"maxUnavailable": "25%", "maxSurge": 2}}'
  spec:
    rolloutStrategy:
      rollingUpdateConfiguration: {maxUnavailable: 1, maxSurge: 0, partition: 1000000}
    leaderWorkerTemplate:
      workerTemplate:
        metadata:
          labels:
            example.com/team.name: serving
        spec:
          containers:
          - name: first
          - image: second
            name: server
---
just text
---
apiVersion: v1
kind: Service
metadata: {name: front, namespace: elsewhere}
`

func parse(t *testing.T, text string) *Set {
	t.Helper()
	s := NewSet("serving")
	if err := s.Add("all.yaml", []byte(text)); err != nil {
		t.Fatal(err)
	}
	return s
}

// Lists are taken apart, what says no namespace gets one, and each field has its line.
func TestLocate(t *testing.T) {
	s := parse(t, whole)
	w := &pb.ObjectRef{Kind: "LeaderWorkerSet", Namespace: "serving", Name: "vllm"}
	for field, line := range map[string]int{
		"":              9,
		"metadata.name": 12,
		"spec.leaderWorkerTemplate.workerTemplate.spec.containers[1].name":                         27,
		"spec.leaderWorkerTemplate.workerTemplate.spec.containers[1].readinessProbe":               26,
		"spec.leaderWorkerTemplate.workerTemplate.spec.containers[7].name":                         24,
		"spec.leaderWorkerTemplate.leaderTemplate":                                                 18,
		`spec.leaderWorkerTemplate.workerTemplate.metadata.labels["example.com/team.name"]`:        22,
		`spec.leaderWorkerTemplate.workerTemplate.metadata.labels["example.com/team.name"].deeper`: 22,
	} {
		if file, got := s.Locate(w, field); file != "all.yaml" || got != line {
			t.Errorf("%s is in %s, line %d, want %d", field, file, got, line)
		}
	}
	for name, tt := range map[string]struct {
		ref  *pb.ObjectRef
		line int
	}{
		"of another namespace": {&pb.ObjectRef{Kind: "Service", Namespace: "elsewhere", Name: "front"}, 31},
		"of no namespace":      {&pb.ObjectRef{Kind: "Node", Name: "n1"}, 6},
		"not there":            {&pb.ObjectRef{Kind: "Service", Namespace: "serving", Name: "front"}, 0},
	} {
		if _, line := s.Locate(tt.ref, ""); line != tt.line {
			t.Errorf("%s: line %d, want %d", name, line, tt.line)
		}
	}
}

// JSON is YAML.
func TestJSON(t *testing.T) {
	s := parse(t, `{"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "vllm"}}`)
	if all, err := s.Workloads(); err != nil || len(all) != 1 || all[0].Namespace != "serving" {
		t.Errorf("%v, %v", all, err)
	}
}

func TestWorkloadsRefuses(t *testing.T) {
	for text, says := range map[string]string{
		"apiVersion: leaderworkerset.x-k8s.io/v2\nkind: LeaderWorkerSet\n":                                            `apiVersion "leaderworkerset.x-k8s.io/v2"`,
		"apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nspec: {replica: 1}\n":                        "replica",
		"apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: x}\nspec: {replicas: -1}\n": "-1 replicas",
	} {
		if _, err := parse(t, text).Workloads(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, text := range []string{"a: [", "a: {b: 1}\n  c: 2\n"} {
		if err := NewSet("x").Add("f", []byte(text)); err == nil || !strings.Contains(err.Error(), "read f") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Under hold the user's own configuration is in the record; without any, it is LWS's default.
func TestRolling(t *testing.T) {
	all, err := parse(t, whole).Workloads()
	if err != nil {
		t.Fatal(err)
	}
	if r := Rolling(all[0]); r.MaxUnavailable.String() != "25%" || r.MaxSurge.IntValue() != 2 {
		t.Errorf("%+v", r)
	}
	all[0].Annotations = nil
	if r := Rolling(all[0]); *r.Partition != 1000000 {
		t.Errorf("%+v", r)
	}
	all[0].Spec.RolloutStrategy.RollingUpdateConfiguration = nil
	if r := Rolling(all[0]); r.MaxUnavailable.IntValue() != 1 || r.MaxSurge.IntValue() != 0 || *r.Partition != 0 {
		t.Errorf("%+v", r)
	}
}

// An object that is not as its kind is an error, and not overlooked.
func TestInventoryRefuses(t *testing.T) {
	s := parse(t, whole+"---\napiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {ports: 80}\n")
	all, err := s.Workloads()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Inventory(all[0]); err == nil || !strings.Contains(err.Error(), "all.yaml: read Service x") {
		t.Errorf("%v", err)
	}
}
