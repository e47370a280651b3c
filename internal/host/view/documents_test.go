// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"
	"sigs.k8s.io/yaml"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func TestDocumentsParseBack(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason string
		format Format
		split  func(text string) []string
	}{
		"JSON": {
			reason: "one object per line",
			format: FormatJSON,
			split:  func(text string) []string { return strings.Split(strings.TrimSpace(text), "\n") },
		},
		"YAML": {
			reason: "a stream of documents",
			format: FormatYAML,
			split:  func(text string) []string { return strings.Split(text, "---\n")[1:] },
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var b bytes.Buffer
			printer := NewDocuments(&b, tc.format)
			for _, e := range events() {
				printer.Observe(e)
			}
			documents := tc.split(b.String())
			if len(documents) != len(events()) || printer.Err() != nil {
				t.Fatalf("%s: %d documents for %d events, %v", tc.reason, len(documents), len(events()), printer.Err())
			}
			for i, text := range documents {
				e := events()[i]
				var got Document
				if err := yaml.Unmarshal([]byte(text), &got); err != nil {
					t.Fatalf("document %d: %v", i, err)
				}
				var c pb.BatchContext
				if err := protojson.Unmarshal(got.Context, &c); err != nil {
					t.Fatalf("document %d: context: %v", i, err)
				}
				if got.Event != string(e.Kind) || got.Message != e.Message || got.Outcome != string(e.Outcome) || !got.Time.Equal(e.Time) {
					t.Errorf("document %d = %+v, want event %s at %s", i, got, e.Kind, e.Time)
				}
				if diff := cmp.Diff(e.Context, &c, protocmp.Transform()); diff != "" {
					t.Errorf("document %d: context: -want, +got:\n%s", i, diff)
				}
			}
		})
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestDocumentsKeepFirstError(t *testing.T) {
	t.Parallel()
	printer := NewDocuments(brokenPipe{}, FormatJSON)
	printer.Observe(StatusEvent(upgrading()))
	if printer.Err() == nil {
		t.Error("Err() = nil after a write that failed")
	}
}
