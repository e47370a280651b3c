// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// TestVerificationFollowsGroups checks that, where requests follow the groups, 100 is the only possible weight.
func TestVerificationFollowsGroups(t *testing.T) {
	some := replacing(record.Progressing, declared)
	all := replacing(record.Progressing, declared, func(o *Observation) {
		o.Stable.Groups[0].Revision, o.Stable.Groups[1].Revision = "B", "B"
	})
	for _, tc := range []struct {
		name              string
		o                 Observation
		weight, share     int
		reason, want      string
		verified, blocked bool
	}{
		{name: "all of them", o: all, weight: 100, share: 100, verified: true},
		{name: "not observed by the gateway", o: all, weight: 100, share: 100, reason: traffic.ReasonRouteNotObserved, want: traffic.ReasonRouteNotObserved},
		{name: "some are stable", o: some, weight: 100, share: 50, want: ReasonGroupsNotReady},
		{name: "another weight", o: some, weight: 40, share: 50, want: ReasonFollowsGroups, blocked: true},
		{name: "another weight, all updated", o: all, weight: 40, share: 100, want: ReasonFollowsGroups, blocked: true},
		{name: "none", o: some, weight: 0, share: 50, want: ReasonFollowsGroups, blocked: true},
	} {
		v := Verification{Reason: tc.reason, Message: tc.reason}.followGroups(tc.o, tc.weight)
		assert.True(t, v.Verified == tc.verified && v.Reason == tc.want && v.Blocked == tc.blocked && v.Weight == tc.share, "%s: %+v", tc.name, v)
		assert.Equal(t, tc.verified, v.Message == "", "%s: message %q", tc.name, v.Message)
	}
}
