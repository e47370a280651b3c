// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
