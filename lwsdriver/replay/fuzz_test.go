// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
)

// A recording is read or refused, and what was read is written again as it is.
func FuzzRecording(f *testing.F) {
	var recorded bytes.Buffer
	r := &Recorder{To: &recorded}
	for _, i := range []plan.Intent{nil, plan.Adopt{}, plan.SetTarget{ReleaseID: "r1"}} {
		d, err := plan.Decide(resting(), i)
		r.Record(resting(), i, d, err)
	}
	for line := range strings.Lines(recorded.String()) {
		f.Add(line)
	}
	f.Add("{}\n")
	f.Add(`{"version":1,"intent":{"kind":"Begin","value":{"policy":{"style":9}}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		_ = Read(strings.NewReader(text), func(_ int, e Entry) error {
			_, err := e.MarshalJSON()
			assert.NoError(t, err, "what was read can't be written")
			return nil
		})
	})
}
