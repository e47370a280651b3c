// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// newerFields are optional fields that a newer driver adds in the same schema version, at each level.
var newerFields = []struct{ old, with string }{
	{`{"version":1`, `{"version":1,"zone":{"b":[1,2.50],"a":"<x>"}`},
	{`"id":"r-1"`, `"id":"r-1","soak":"1h"`},
	{`"groups":"25%"`, `"groups":"25%","pause":"5m"`},
	{`"weight":10`, `"weight":10,"cap":9`},
}

func newerRecord(t testing.TB) string {
	t.Helper()
	r := sampleRecord(t)
	r.Release.Traffic = &Traffic{Weight: 10}
	value := encoded(t, r)
	for _, f := range newerFields {
		value = replace(f.old, f.with)(value)
	}
	return value
}

// An older driver that writes the record keeps what a newer one added, also through copies and changes.
func TestUnknownFieldsAreKept(t *testing.T) {
	read, err := DecodeRecord(newerRecord(t))
	if err != nil {
		t.Fatal(err)
	}
	if newer := read.Newer(); newer != "" {
		t.Errorf("optional fields keep a release from going on: %s", newer)
	}
	next := *read
	release := *read.Release
	release.Phase, release.PhaseAt = Promoting, start.Add(time.Hour)
	release.Target = release.Target.Renewed(start.Add(time.Hour))
	release.Traffic = release.Traffic.With(func(t *Traffic) { t.Weight = 0 })
	next.Release = &release
	value := encoded(t, &next)
	for _, want := range []string{`"soak":"1h"`, `"pause":"5m"`, `"cap":9`, `"phase":"Promoting"`, `2.50`} {
		if !strings.Contains(value, want) {
			t.Errorf("%s is lost:\n%s", want, value)
		}
	}
	again, err := DecodeRecord(value)
	if err != nil {
		t.Fatal(err)
	}
	if twice := encoded(t, again); twice != value {
		t.Errorf("encoding drifts:\n%s\n%s", value, twice)
	}
	if reset := release.Traffic.With(func(t *Traffic) { *t = Traffic{} }); reset != nil {
		t.Errorf("a reset keeps %+v", reset)
	}
}

// Observations are recorded as JSON: what is unknown survives that, too.
func TestUnknownFieldsAreRecorded(t *testing.T) {
	read, err := DecodeRecord(newerRecord(t))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(map[string]any{"record": read})
	if err != nil {
		t.Fatal(err)
	}
	var back struct{ Record *Record }
	if err := json.Unmarshal(raw, &back); err != nil {
		t.Fatal(err)
	}
	if want, got := encoded(t, read), encoded(t, back.Record); want != got {
		t.Errorf("%s became %s", want, got)
	}
}

// What a newer driver wrote is described, and a write of an older driver that goes back keeps it.
func TestNewer(t *testing.T) {
	tests := []struct {
		name  string
		edit  func(string) string
		newer string
		kept  string
	}{
		{"version", replace(`"version":1`, `"version":3`), "schema version 3", `"version":3`},
		{"policy field", replace(`"minReady"`, `"maxReady":{"x":1},"minReady"`), "release.policy", `"maxReady":{"x":1}`},
		{"batch of a newer policy", replace(`"100%"`, `"next","100%"],"x":[`), "release.policy", `"next"`},
		{"header route", replace(`"startedAt":`, `"traffic":{"weight":5,"headerRoutes":[{"name":"a","matches":[],"any":1}]},"startedAt":`),
			"release.traffic.headerRoutes", `"any":1`},
		{"saved", replace(`"stableRevision"`, `"stableTemplate":{"leaderWorkerTemplate":{"workerTemplate":{"spec":{"containers":[]}},"gang":true}},"stableRevision"`),
			"release.stableTemplate", `"gang":true`},
		{"target of a newer schema", func(s string) string {
			return replace(`"version":1`, `"version":2`)(replace(`"groups":"25%"`, `"groups":{"share":4}`)(s))
		}, "release.target", `"groups":{"share":4}`},
		{"time of a newer schema", func(s string) string {
			return replace(`"version":1`, `"version":2`)(replace(`"startedAt":"`, `"startedAt":"day `)(s))
		}, "release.startedAt", `"startedAt":"day `},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := DecodeRecord(tt.edit(encoded(t, sampleRecord(t))))
			if err != nil {
				t.Fatal(err)
			}
			if newer := r.Newer(); !strings.Contains(newer, tt.newer) {
				t.Errorf("newer is %q, want %q", newer, tt.newer)
			}
			back := *r
			release := *r.Release
			release.Phase = RollingBack
			back.Release = &release
			value := encoded(t, &back)
			if !strings.Contains(value, tt.kept) || !strings.Contains(value, `"phase":"RollingBack"`) {
				t.Errorf("the rollback writes %s", value)
			}
			again, err := DecodeRecord(value)
			if err != nil {
				t.Fatalf("the rollback can't be read: %v", err)
			}
			if once := encoded(t, again); once != value {
				t.Errorf("encoding drifts:\n%s\n%s", value, once)
			}
		})
	}
}

// A record of a newer driver that lacks what a rollback needs is refused, by the name of what it lacks.
func TestNewerLacks(t *testing.T) {
	newer := replace(`"version":1`, `"version":2`)
	for name, tt := range map[string]struct {
		edit func(string) string
		want string
	}{
		"phase":    {replace(`"phase":"Progressing"`, `"phase":"Pausing"`), `phase "Pausing" is unknown`},
		"id":       {replace(`"id":"r-1"`, `"name":"r-1"`), "id"},
		"revision": {replace(`"stableRevision":"aaaa"`, `"from":"aaaa"`), "release.stableRevision"},
		"style":    {replace(`"STYLE_CANARY"`, `"STYLE_SHADOW"`), "release.policy.style"},
		"saved":    {replace(`"saved"`, `"kept"`), "saved"},
		"release": {func(string) string {
			return `{"version":1,"saved":{"partition":0,"maxUnavailable":1,"maxSurge":0},"release":[]}`
		}, "release"},
		"routes": {replace(`"style"`, `"traffic":{"stableService":"a","canaryService":"b","meshRoutes":["c"]},"style"`), "release.policy.traffic"},
	} {
		_, err := DecodeRecord(newer(tt.edit(encoded(t, sampleRecord(t)))))
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "schema version 2") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
