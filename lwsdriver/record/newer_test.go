// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"strings"
	"testing"
	"time"
)

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
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(r.Newer, tt.newer) {
				t.Errorf("newer is %q, want %q", r.Newer, tt.newer)
			}
			back, release := *r, *r.Release
			release.Phase, release.PhaseAt = RollingBack, start.Add(time.Hour)
			back.Release = &release
			value, err := back.EncodeOver(earlier)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(value, tt.kept) || !strings.Contains(value, `"phase":"RollingBack"`) {
				t.Errorf("the rollback writes %s", value)
			}
			again, err := DecodeRecord(value)
			if err != nil {
				t.Fatalf("the rollback can't be read: %v", err)
			}
			if once, err := again.EncodeOver(value); once != value {
				t.Errorf("%v, encoding drifts:\n%s\n%s", err, value, once)
			}
		})
	}
}

// A record that this driver knows is replaced, whatever was there before.
func TestEncodeOver(t *testing.T) {
	r := sampleRecord(t)
	want := encoded(t, r)
	for _, earlier := range []string{"", "{", want, encoded(t, &Record{Saved: Hold()})} {
		if got, err := r.EncodeOver(earlier); err != nil || got != want {
			t.Errorf("over %s: %v, %s", earlier, err, got)
		}
	}
}
