// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwstest

import (
	"bytes"
	"testing"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/replay"
)

// Replayed returns what a driver or an engine is to call with each decision: at the end of the test, each is made again
// from what a recording has of it.
func Replayed(t testing.TB) func(plan.Observation, plan.Intent, plan.Decision, error) {
	t.Helper()
	var recording bytes.Buffer
	r := &replay.Recorder{To: &recording}
	t.Cleanup(func() {
		if err := r.Err(); err != nil {
			t.Error(err)
		}
		err := replay.Read(&recording, func(line int, e replay.Entry) error {
			differences, err := e.Replay()
			for _, d := range differences {
				t.Errorf("decision %d is another one when it is replayed: %s", line, d)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
	return r.Record
}
