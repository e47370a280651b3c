// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package statuses reads recordings of what stock controllers write: a host's objects, and the driver's state of the workload, after each
// change of either. Tests of the hosts' mappings decide on them without a control plane.
// Function RecordStatuses of package suite makes a recording.
package statuses

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Line is one change in a recording: what differs from the line before.
type Line struct {
	// Objects are the created and the changed ones, Deleted are the [Key] of the deleted ones.
	Objects []unstructured.Unstructured `json:"objects,omitempty"`
	Deleted []string                    `json:"deleted,omitempty"`
	// Context is the driver's BatchContext as protobuf JSON. It is empty if it is the same, and null if the workload is gone.
	Context json.RawMessage `json:"context,omitempty"`
}

// State is what a host observes at one moment.
type State struct {
	// Objects are the host's objects by [Key].
	Objects map[string]unstructured.Unstructured
	// Context is nil if the workload does not exist.
	Context *pb.BatchContext
}

// Key returns the key of an object: its kind and name.
func Key(o *unstructured.Unstructured) string { return o.GetKind() + "/" + o.GetName() }

// Of returns the objects of a kind, sorted by name.
func (s State) Of(kind string) []unstructured.Unstructured {
	var all []unstructured.Unstructured
	for _, o := range s.Objects {
		if o.GetKind() == kind {
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b unstructured.Unstructured) int { return strings.Compare(a.GetName(), b.GetName()) })
	return all
}

// Decide calls decide with each state of each recording in testdata/statuses, and compares its answers with the file of the same name that
// ends in .golden. Successive equal answers count once. With update it writes these files.
func Decide(t *testing.T, update bool, decide func(*testing.T, State) string) {
	t.Helper()
	files, err := filepath.Glob("testdata/statuses/*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatalf("testdata/statuses has no recording: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".jsonl"), func(t *testing.T) {
			var answers []string
			for i, s := range read(t, file) {
				answer := decide(t, s)
				if len(answers) == 0 || !strings.HasSuffix(answers[len(answers)-1], ": "+answer) {
					answers = append(answers, fmt.Sprintf("%d: %s", i, answer))
				}
			}
			got, golden := strings.Join(answers, "\n")+"\n", strings.TrimSuffix(file, ".jsonl")+".golden"
			if update {
				if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("the decisions differ; -update accepts them.\ngot:\n%swant:\n%s", got, want)
			}
		})
	}
}

func read(t *testing.T, file string) []State {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all []State
	now := State{Objects: map[string]unstructured.Unstructured{}}
	for raw := range bytes.Lines(content) {
		var line Line
		if err := json.Unmarshal(raw, &line); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		next := State{Objects: map[string]unstructured.Unstructured{}, Context: now.Context}
		for key, o := range now.Objects {
			if !slices.Contains(line.Deleted, key) {
				next.Objects[key] = o
			}
		}
		for _, o := range line.Objects {
			next.Objects[Key(&o)] = o
		}
		if len(line.Context) > 0 {
			next.Context = nil
			if string(line.Context) != "null" {
				next.Context = &pb.BatchContext{}
				if err := protojson.Unmarshal(line.Context, next.Context); err != nil {
					t.Fatalf("%s: %v", file, err)
				}
			}
		}
		all, now = append(all, next), next
	}
	return all
}
