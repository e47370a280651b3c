// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// The rendering version survives the record; a record without one is that of a driver without one.
func TestRenderingIsRecorded(t *testing.T) {
	assert.GreaterOrEqual(t, Rendering(), 1, "this driver's")
	r := sampleRecord(t)
	assert.NotContains(t, encoded(t, r), "rendering", "0 is written")
	r.Release.Rendering = 7
	again, err := DecodeRecord(encoded(t, r))
	assert.True(t, err == nil && again.Release.Rendering == 7 && again.Newer == "", "%v: %+v", err, again)
	_, err = DecodeRecord(replace(`"rendering":7`, `"rendering":"seven"`)(encoded(t, r)))
	assert.Error(t, err, "a text is accepted")
}
