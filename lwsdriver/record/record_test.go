// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
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
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func TestDecodeRecordIsStrict(t *testing.T) {
	tests := []struct {
		name   string
		reason string
		edit   func(string) string
		bad    bool
	}{
		{"AsWritten", "The control: nothing was edited.", func(s string) string { return s }, false},
		{"Space", "A YAML editor may end the value with a new line.", func(s string) string { return " " + s + "\n" }, false},
		{"Empty", "No record is no annotation, not an empty one.", func(string) string { return "" }, true},
		{"Null", "null is no record.", func(string) string { return "null" }, true},
		{"Array", "Not an object.", func(s string) string { return "[" + s + "]" }, true},
		{"Truncated", "A truncated record.", func(s string) string { return s[:len(s)/2] }, true},
		{"TrailingGarbage", "Trailing data is refused.", func(s string) string { return s + "x" }, true},
		{"TrailingRecord", "Trailing data is refused.", func(s string) string { return s + s }, true},
		{"UnknownField", "A newer driver's release can be rolled back.", replace(`{"version":1`, `{"version":1,"extra":true`), false},
		{"UnknownReleaseField", "A newer driver's release can be rolled back.", replace(`{"id":`, `{"extra":1,"id":`), false},
		{"UnknownPolicyField", "A newer driver's policy can be rolled back.", replace(`"minReady"`, `"maxReady"`), false},
		{"UnknownPolicyFieldAndBadStyle", "A rollback needs the style.", replace(`"style":"STYLE_CANARY"`, `"style":"STYLE_NEW","x":1`), true},
		{"WrongType", "No driver wrote it.", replace(`"splitEnded":true`, `"splitEnded":"yes"`), true},
		{"WrongTypeInSaved", "No driver wrote it.", replace(`"partition":0`, `"partition":"0"`), true},
		{"NoVersion", "A schema without a version.", replace(`"version":1,`, ``), true},
		{"OlderVersion", "No version wrote it.", replace(`"version":1`, `"version":0`), true},
		{"NewerVersion", "A newer driver's release can be rolled back.", replace(`"version":1`, `"version":2`), false},
		{"NewerVersionWithoutPhase", "A rollback needs the phase.", func(s string) string {
			return replace(`"phase":"Progressing"`, `"phase":"Pausing"`)(replace(`"version":1`, `"version":2`)(s))
		}, true},
		{"EditedPhase", "Promoting is one word away from Progressing; a word that is neither is refused.", replace(`"Progressing"`, `"Promote"`), true},
		{"PhaseInLowerCase", "Phases are exact.", replace(`"Progressing"`, `"progressing"`), true},
		{"NoPhase", "An intent is needed.", replace(`"phase":"Progressing",`, ``), true},
		{"BadPolicy", "The policy is checked again, as if it came from a host.", replace(`"100%"`, `"10%"`), true},
		{"NoPolicy", "The policy is what the release does.", replace(`"policy":{`, `"policy":null,"x":{`), true},
		{"PolicyIsText", "The policy is an object.", replace(`"policy":{`, `"policy":"a","x":{`), true},
		{"EmptyID", "Hosts find their release by id.", replace(`"id":"r-1"`, `"id":""`), true},
		{"IDWithSpace", "No host could have chosen it.", replace(`"id":"r-1"`, `"id":"r 1"`), true},
		{"BadTarget", "A target that no host could have requested.", replace(`"groups":"25%"`, `"groups":"125%"`), true},
		{"NegativeBatch", "Batches count from 0.", replace(`"batch":0`, `"batch":-1`), true},
		{"BadSaved", "No user has it: LWS refuses it.", replace(`"maxSurge":1`, `"maxSurge":"1"`), true},
		{"NegativeSaved", "No user has it: LWS refuses it.", replace(`"maxSurge":1`, `"maxSurge":-1`), true},
		{"NegativePartition", "No user has it: LWS refuses it.", replace(`"partition":0`, `"partition":-1`), true},
		{"HeaderRoute", "The control: a host requested it.", replace(`"startedAt":`, `"traffic":{"headerRoutes":[{"name":"a","matches":[{"name":"x","value":"1"}]}]},"startedAt":`), false},
		{"BadExpression", "No host could have requested it.", replace(`"startedAt":`, `"traffic":{"headerRoutes":[{"name":"a","matches":[{"name":"x","value":"(","regex":true}]}]},"startedAt":`), true},
		{"CookieByExpression", "No host could have requested it.", replace(`"startedAt":`, `"traffic":{"headerRoutes":[{"name":"a","matches":[{"name":"x","value":"1","regex":true,"cookie":true}]}]},"startedAt":`), true},
		{"SameHeaderRoute", "Names are unique.", replace(`"startedAt":`, `"traffic":{"headerRoutes":[{"name":"a","matches":[{"name":"x","value":"1"}]},{"name":"a","matches":[{"name":"y","value":"1"}]}]},"startedAt":`), true},
		{"BadTime", "Times are RFC 3339.", replace(`"startedAt":"2026`, `"startedAt":"26`), true},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			written := encoded(t, sampleRecord(t))
			got, err := DecodeRecord(tc.edit(written))
			if (err != nil) != tc.bad {
				t.Errorf("%s\nerror %v, want one: %t", tc.reason, err, tc.bad)
			}
			if (got == nil) != tc.bad {
				t.Errorf("%s\nrecord %v beside error %v", tc.reason, got, err)
			}
			if diff := cmp.Diff(sampleRecord(t), got); tc.name == "AsWritten" && diff != "" {
				t.Errorf("-written, +read:\n%s", diff)
			}
		})
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

func TestDecodeTargetIsStrict(t *testing.T) {
	tests := []struct {
		name   string
		reason string
		in     string
		want   *Target
		bad    bool
	}{
		{"None", "No annotation is no target.", "", nil, false},
		{"Count", "As written.", `{"groups":"3","at":"2026-05-04T12:00:00Z"}`, &Target{Groups: "3", At: start}, false},
		{"Batch", "As written.", `{"groups":"25%","batch":1,"at":"2026-05-04T12:00:00Z"}`, &Target{Groups: "25%", Batch: ptr.To(1), At: start}, false},
		{"Null", "null is no target.", "null", nil, true},
		{"NoGroups", "A target has groups.", `{"at":"2026-05-04T12:00:00Z"}`, nil, true},
		{"Number", "Quantities are text.", `{"groups":3}`, nil, true},
		{"UnknownField", "This driver did not write it.", `{"groups":"3","max":4}`, nil, true},
		{"WrongType", "No driver wrote it.", `{"groups":"3","batch":"1"}`, nil, true},
		{"Garbage", "Trailing data is refused.", `{"groups":"3"}}`, nil, true},
		{"NegativeBatch", "Batches count from 0.", `{"groups":"3","batch":-1}`, nil, true},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			got, err := DecodeTarget(tc.in)
			if (err != nil) != tc.bad {
				t.Errorf("%s\nerror %v, want one: %t", tc.reason, err, tc.bad)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s\n-want, +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestTarget(t *testing.T) {
	var none *Target
	if n, err := none.Planned(4); n != 0 || err != nil {
		t.Errorf("no target means no groups, got %d, %v", n, err)
	}
	if none.Renewed(start) != nil {
		t.Error("renewing must not invent a target")
	}
	quarter := &Target{Groups: "25%", Batch: ptr.To(0), At: start}
	for replicas, want := range map[int]int{0: 0, 1: 1, 4: 1, 5: 2, 8: 2} {
		if n, err := quarter.Planned(replicas); n != want || err != nil {
			t.Errorf("25%% of %d = %d, %v; want %d", replicas, n, err, want)
		}
	}
	if _, err := (&Target{Groups: "x"}).Planned(4); err == nil {
		t.Error("an unreadable target must not mean 0 groups, which would take the canary away")
	}
	later := quarter.Renewed(start.Add(time.Hour))
	if diff := cmp.Diff(&Target{Groups: "25%", Batch: ptr.To(0), At: start.Add(time.Hour)}, later); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
	if !quarter.At.Equal(start) {
		t.Error("renewing changed the original")
	}
}

func TestValidID(t *testing.T) {
	for id, want := range map[string]bool{
		"r-1": true, "A": true, "6f9d.7_x": true, strings.Repeat("a", 63): true,
		"": false, "-a": false, "a-": false, "a/b": false, "a b": false, "ä": false, strings.Repeat("a", 64): false, "a\n": false,
	} {
		if got := ValidID(id); got != want {
			t.Errorf("ValidID(%q) = %t", id, got)
		}
	}
}

func TestEncodePolicyIsStable(t *testing.T) {
	p := &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"1", "2"}, FailureThreshold: "1"}
	first, err := EncodePolicy(p)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		next, err := EncodePolicy(p)
		if err != nil || string(next) != string(first) {
			t.Fatalf("the same policy is recorded as %s and as %s (%v)", first, next, err)
		}
	}
	back, err := (&Release{Policy: first}).PolicyMessage()
	if err != nil || !proto.Equal(p, back) {
		t.Errorf("%s reads as %v, %v", first, back, err)
	}
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add(encoded(f, sampleRecord(f)))
	f.Add(encoded(f, &Record{Saved: Hold()}))
	f.Fuzz(func(t *testing.T, value string) {
		r, err := DecodeRecord(value)
		if err != nil {
			if r != nil {
				t.Errorf("a record beside the error %v", err)
			}
			return
		}
		once, err := r.Encode()
		if err != nil {
			t.Fatalf("what was read can't be written: %v", err)
		}
		again, err := DecodeRecord(once)
		if err != nil {
			t.Fatalf("what was written can't be read: %v\n%s", err, once)
		}
		if twice := encoded(t, again); once != twice {
			t.Fatalf("encoding drifts, so each look would write:\n%s\n%s", once, twice)
		}
		if diff := cmp.Diff(r, again, cmpopts.IgnoreFields(Record{}, "Newer"), cmpopts.IgnoreFields(Release{}, "Policy")); diff != "" {
			t.Fatalf("-read, +read again:\n%s", diff)
		}
		if r.Release == nil {
			return
		}
		if r.Newer != "" {
			return // it is only rolled back
		}
		// A decoded record must not fail later, when no caller can be told.
		p, err := r.Release.PolicyMessage()
		if err != nil {
			t.Fatal(err)
		}
		if _, bad := ParsePolicy(p); len(bad) > 0 {
			t.Fatal(bad)
		}
		if n, err := r.Release.Target.Planned(7); err != nil || n < 0 || n > 7 {
			t.Fatalf("target of %d groups of 7, %v", n, err)
		}
	})
}

func FuzzDecodeTarget(f *testing.F) {
	f.Fuzz(func(t *testing.T, value string) {
		target, err := DecodeTarget(value)
		if err != nil || target == nil {
			if target != nil || (err == nil) != (value == "") {
				t.Errorf("DecodeTarget(%q) = %v, %v", value, target, err)
			}
			return
		}
		once, err := target.Encode()
		if err != nil {
			t.Fatalf("what was read can't be written: %v", err)
		}
		again, err := DecodeTarget(once)
		if err != nil {
			t.Fatalf("what was written can't be read: %v\n%s", err, once)
		}
		if diff := cmp.Diff(target, again); diff != "" {
			t.Fatal(diff)
		}
		if n, err := target.Planned(7); err != nil || n < 0 || n > 7 {
			t.Fatalf("target of %d groups of 7, %v", n, err)
		}
	})
}
