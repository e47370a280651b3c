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

// A newer driver's record is refused if this driver lacks or does not know what a rollback writes.
func TestNewerLacks(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(string) string
		want string
	}{
		"phase":           {replace(`"phase":"Progressing"`, `"phase":"Pausing"`), `phase "Pausing" is unknown`},
		"id":              {replace(`"id":"r-1"`, `"name":"r-1"`), "id"},
		"revision":        {replace(`"stableRevision":"aaaa"`, `"from":"aaaa"`), "release.stableRevision"},
		"style":           {replace(`"STYLE_CANARY"`, `"STYLE_SHADOW"`), "policy.style"},
		"saved":           {replace(`"saved"`, `"kept"`), "saved"},
		"field of saved":  {replace(`"saved":{`, `"saved":{"pause":1,`), "pause"},
		"stable template": {replace(`"startedAt":`, `"stableTemplate":{"leaderWorkerTemplate":{"workerTemplate":{"spec":{"containers":[]}},"gang":true}},"startedAt":`), "gang"},
		"target":          {replace(`"groups":"25%"`, `"groups":{"share":4}`), "groups"},
		"time":            {replace(`"startedAt":"`, `"startedAt":"day `), "day"},
		"release": {func(string) string {
			return `{"version":1,"saved":{"partition":0,"maxUnavailable":1,"maxSurge":0},"release":[]}`
		}, "release"},
		"routes": {replace(`"style"`, `"traffic":{"stableService":"a","canaryService":"b","httpRoutes":["d"],"meshRoutes":["c"]},"style"`), "release.policy.traffic"},
	} {
		_, err := DecodeRecord(replace(`"version":1`, `"version":2`)(tt.edit(encoded(t, sampleRecord(t)))))
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "schema version 2") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
