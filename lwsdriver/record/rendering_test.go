// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"strings"
	"testing"
)

// The rendering version survives the record; a record without one is that of a driver without one.
func TestRenderingIsRecorded(t *testing.T) {
	if Rendering() < 1 {
		t.Errorf("this driver's is %d", Rendering())
	}
	r := sampleRecord(t)
	if value := encoded(t, r); strings.Contains(value, "rendering") {
		t.Errorf("0 is written: %s", value)
	}
	r.Release.Rendering = 7
	again, err := DecodeRecord(encoded(t, r))
	if err != nil || again.Release.Rendering != 7 || again.Newer != "" {
		t.Errorf("%v: %+v", err, again)
	}
	if _, err := DecodeRecord(replace(`"rendering":7`, `"rendering":"seven"`)(encoded(t, r))); err == nil {
		t.Error("a text is accepted")
	}
}
