// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwstest

import (
	"bytes"
	"testing"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/replay"
)

// ReplayDecisions returns a callback for the decisions of a driver or an engine. At the end of the test, each is replayed
// from its recording.
func ReplayDecisions(t testing.TB) func(plan.Observation, plan.Intent, plan.Decision, error) {
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
				t.Errorf("replayed decision %d differs: %s", line, d)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
	return r.Record
}

// Decide returns the decision about an observation without a request.
func Decide(t testing.TB, o plan.Observation) plan.Decision {
	t.Helper()
	d, err := plan.Decide(o, nil)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
