// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"k8s.io/utils/ptr"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

var start = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func samplePolicy(t testing.TB) json.RawMessage {
	t.Helper()
	raw, err := EncodePolicy(&pb.ReleasePolicy{
		Style: pb.Style_STYLE_CANARY, Batches: []string{"25%", "100%"}, MinReady: durationpb.New(10 * time.Second),
	})
	require.NoError(t, err)
	return raw
}

func sampleRecord(t testing.TB) *Record {
	t.Helper()
	return &Record{
		Version: recordVersion,
		Saved:   rolling(0, "25%", "1"),
		Release: &Release{
			ID: "r-1", Owner: "argo-rollouts/default/vllm", Policy: samplePolicy(t),
			StableRevision: "aaaa", UpdateRevision: "bbbb", Phase: Progressing,
			StartedAt: start, PhaseAt: start.Add(time.Second),
			Target:     &Target{Groups: "25%", Batch: ptr.To(0), At: start.Add(time.Minute)},
			SplitEnded: true,
		},
	}
}

func encoded(t testing.TB, r *Record) string {
	t.Helper()
	value, err := r.Encode()
	require.NoError(t, err)
	return value
}

// TestDecodeRecord runs testdata/records.txt: each line is a record, or edits of sampleRecord. Below is why it is not read, or what of it is newer.
func TestDecodeRecord(t *testing.T) {
	t.Parallel()
	sample := encoded(t, sampleRecord(t))
	datadriven.RunTest(t, "testdata/records.txt", func(t *testing.T, d *datadriven.TestData) string {
		var told strings.Builder
		for line := range strings.SplitSeq(d.Input, "\n") {
			value := line
			if d.Cmd == "edit" {
				value = sample
				for edit := range strings.SplitSeq(line, " && ") {
					old, with, _ := strings.Cut(edit, " => ")
					value = replace(old, with)(value)
				}
			}
			switch r, err := DecodeRecord(value); {
			case (r == nil) == (err == nil):
				t.Errorf("%s: %v beside error %v", line, r, err)
			case err != nil:
				fmt.Fprintf(&told, "error: %v\n", err)
			case r.Newer != "":
				fmt.Fprintf(&told, "newer: %s\n", r.Newer)
			default:
				told.WriteString("read\n")
			}
		}
		return strings.ReplaceAll(told.String(), "\u00a0", " ") // of the errors of protobuf, which some builds have
	})
	got, err := DecodeRecord("")
	assert.Error(t, err, "of an empty annotation: %v", got)
	if got, err := DecodeRecord(sample); err != nil || cmp.Diff(sampleRecord(t), got) != "" {
		t.Errorf("as written, %v: -written, +read:\n%s", err, cmp.Diff(sampleRecord(t), got))
	}
}

func replace(old, with string) func(string) string {
	return func(s string) string {
		if !strings.Contains(s, old) {
			panic("the record has no " + old + ": " + s)
		}
		return strings.Replace(s, old, with, 1)
	}
}

// TestDecodeTarget runs testdata/targets.txt: each line is an annotation. Below is the target that is read, batch -1 without one, or why it is not.
func TestDecodeTarget(t *testing.T) {
	t.Parallel()
	datadriven.RunTest(t, "testdata/targets.txt", func(t *testing.T, d *datadriven.TestData) string {
		var told strings.Builder
		for line := range strings.SplitSeq(d.Input, "\n") {
			target, err := DecodeTarget(line)
			assert.NotEqual(t, err == nil, target == nil, "%s: %v beside error %v", line, target, err)
			if err != nil {
				fmt.Fprintf(&told, "error: %v\n", err)
				continue
			}
			fmt.Fprintf(&told, "%s groups, batch %d, at %s\n", target.Groups, ptr.Deref(target.Batch, -1), target.At)
		}
		return told.String()
	})
	got, err := DecodeTarget("")
	assert.True(t, got == nil && err == nil, "no annotation: %v, %v", got, err)
}

func TestTarget(t *testing.T) {
	var none *Target
	n, err := none.Planned(4)
	assert.True(t, n == 0 && err == nil, "no target means no groups, got %d, %v", n, err)
	assert.Nil(t, none.Renewed(start), "renewing must not invent a target")
	quarter := &Target{Groups: "25%", Batch: ptr.To(0), At: start}
	for replicas, want := range map[int]int{0: 0, 1: 1, 4: 1, 5: 2, 8: 2} {
		n, err := quarter.Planned(replicas)
		assert.True(t, n == want && err == nil, "25%% of %d = %d, %v; want %d", replicas, n, err, want)
	}
	_, err = (&Target{Groups: "x"}).Planned(4)
	assert.Error(t, err, "an unreadable target must not mean 0 groups, which would take the canary away")
	later := quarter.Renewed(start.Add(time.Hour))
	assert.Empty(t, cmp.Diff(&Target{Groups: "25%", Batch: ptr.To(0), At: start.Add(time.Hour)}, later), "-want, +got")
	assert.True(t, quarter.At.Equal(start), "renewing changed the original")
}

func TestValidID(t *testing.T) {
	for id, want := range map[string]bool{
		"r-1": true, "A": true, "6f9d.7_x": true, strings.Repeat("a", 63): true,
		"": false, "-a": false, "a-": false, "a/b": false, "a b": false, "ä": false, strings.Repeat("a", 64): false, "a\n": false,
	} {
		assert.Equal(t, want, ValidID(id), "ValidID(%q)", id)
	}
}

func TestEncodePolicyIsStable(t *testing.T) {
	p := &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"1", "2"}, FailureThreshold: "1"}
	first, err := EncodePolicy(p)
	require.NoError(t, err)
	for range 20 {
		next, err := EncodePolicy(p)
		require.True(t, err == nil && string(next) == string(first), "the same policy is recorded as %s and as %s (%v)", first, next, err)
	}
	back, err := (&Release{Policy: first}).PolicyMessage()
	assert.True(t, err == nil && proto.Equal(p, back), "%s reads as %v, %v", first, back, err)
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add(encoded(f, sampleRecord(f)))
	f.Add(encoded(f, &Record{Saved: Hold()}))
	f.Fuzz(func(t *testing.T, value string) {
		r, err := DecodeRecord(value)
		if err != nil {
			assert.Nil(t, r, "a record beside the error %v", err)
			return
		}
		once, err := r.Encode()
		require.NoError(t, err, "what was read can't be written")
		again, err := DecodeRecord(once)
		require.NoError(t, err, "what was written can't be read: %v\n%s", err, once)
		twice := encoded(t, again)
		require.Equal(t, twice, once, "encoding drifts, so each look would write:\n%s\n%s", once, twice)
		require.Empty(t, cmp.Diff(r, again, cmpopts.IgnoreFields(Record{}, "Newer"), cmpopts.IgnoreFields(Release{}, "Policy")), "-read, +read again")
		if r.Release == nil {
			return
		}
		if r.Newer != "" {
			return // it is only rolled back
		}
		// A decoded record must not fail later, when no caller can be told.
		p, err := r.Release.PolicyMessage()
		require.NoError(t, err)
		_, bad := ParsePolicy(p)
		require.Empty(t, bad)
		n, err := r.Release.Target.Planned(7)
		require.True(t, err == nil && n >= 0 && n <= 7, "target of %d groups of 7, %v", n, err)
	})
}

func FuzzDecodeTarget(f *testing.F) {
	f.Fuzz(func(t *testing.T, value string) {
		target, err := DecodeTarget(value)
		if err != nil || target == nil {
			assert.True(t, target == nil && (err == nil) == (value == ""), "DecodeTarget(%q) = %v, %v", value, target, err)
			return
		}
		once, err := target.Encode()
		require.NoError(t, err, "what was read can't be written")
		again, err := DecodeTarget(once)
		require.NoError(t, err, "what was written can't be read: %v\n%s", err, once)
		require.Empty(t, cmp.Diff(target, again))
		n, err := target.Planned(7)
		require.True(t, err == nil && n >= 0 && n <= 7, "target of %d groups of 7, %v", n, err)
	})
}

// What a newer driver wrote is described, and a rollback by this driver keeps it.
func TestNewer(t *testing.T) {
	tests := []struct {
		name  string
		edit  func(string) string
		newer string
		kept  string
	}{
		{"version", replace(`"version":1`, `"version":3`), "schema version 3", `"version":3`},
		{"field", replace(`{"version":1`, `{"version":1,"zone":{"b":[1,2.50],"a":"x"}`), `unknown field "zone"`, `"zone":{"b":[1,2.50],"a":"x"}`},
		{"release field", replace(`"id":"r-1"`, `"id":"r-1","soak":"1h"`), `unknown field "soak"`, `"soak":"1h"`},
		{"target field", replace(`"groups":"25%"`, `"groups":"25%","pause":"5m"`), `unknown field "pause"`, `"pause":"5m"`},
		{"policy field", replace(`"minReady"`, `"maxReady":{"x":1},"minReady"`), "release.policy", `"maxReady":{"x":1}`},
		{"header route", replace(`"startedAt":`, `"traffic":{"weight":5,"headerRoutes":[{"name":"a","matches":[{"name":"x","value":"1"}],"any":1}]},"startedAt":`),
			`unknown field "any"`, `"any":1`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			earlier := tt.edit(encoded(t, sampleRecord(t)))
			r, err := DecodeRecord(earlier)
			require.NoError(t, err)
			assert.Contains(t, r.Newer, tt.newer, "newer")
			back, release := *r, *r.Release
			release.Phase, release.PhaseAt = RollingBack, start.Add(time.Hour)
			back.Release = &release
			value, err := back.EncodeOver(earlier)
			require.NoError(t, err)
			assert.True(t, strings.Contains(value, tt.kept) && strings.Contains(value, `"phase":"RollingBack"`), "the rollback writes %s", value)
			again, err := DecodeRecord(value)
			require.NoError(t, err, "the rollback can't be read")
			once, err := again.EncodeOver(value)
			assert.Equal(t, value, once, "%v, encoding drifts:\n%s\n%s", err, value, once)
		})
	}
}

// A record that this driver knows is replaced, whatever was there before.
func TestEncodeOver(t *testing.T) {
	r := sampleRecord(t)
	want := encoded(t, r)
	for _, earlier := range []string{"", "{", want, encoded(t, &Record{Saved: Hold()})} {
		got, err := r.EncodeOver(earlier)
		assert.True(t, err == nil && got == want, "over %s: %v, %s", earlier, err, got)
	}
}
