// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
				require.NoError(t, yaml.Unmarshal([]byte(text), &got), "document %d", i)
				var c pb.BatchContext
				require.NoError(t, protojson.Unmarshal(got.Context, &c), "document %d: context", i)
				assert.True(t, got.Event == string(e.Kind) && got.Message == e.Message && got.Outcome == string(e.Outcome) && got.Time.Equal(e.Time),
					"document %d = %+v, want event %s at %s", i, got, e.Kind, e.Time)
				assert.Empty(t, cmp.Diff(e.Context, &c, protocmp.Transform()), "document %d: context: -want, +got", i)
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
	assert.Error(t, printer.Err(), "Err() = nil after a write that failed")
}
