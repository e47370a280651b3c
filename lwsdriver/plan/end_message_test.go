// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// The user and the message of an end stay with that end, and not with another one that a template has brought.
func TestEndMessageOfAnotherEnd(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		from, to record.Phase
		kept     bool
	}{
		"promoted":                {record.Promoting, record.Promoted, true},
		"handed over":             {record.Standby, record.HandingOver, true},
		"rolled back":             {record.RollingBack, record.CleaningUp, true},
		"stable template":         {record.Promoting, record.RollingBack, false},
		"third template":          {record.Promoting, record.Progressing, false},
		"third, in mid-rollback":  {record.RollingBack, record.Progressing, false},
		"the same, in mid-course": {record.Promoting, record.Promoting, true},
	} {
		o := Observation{Now: noon, Record: &record.Record{Release: &record.Release{Phase: tt.from, EndedBy: "jo", EndMessage: "good enough"}}}
		r := withRelease(o, func(r *record.Release) { r.Phase = tt.to }).Release
		kept := r.EndedBy == "jo" && r.EndMessage == "good enough"
		assert.False(t, kept != tt.kept || !kept && r.EndedBy+r.EndMessage != "", "%s: ended by %q: %q", name, r.EndedBy, r.EndMessage)
	}
}
