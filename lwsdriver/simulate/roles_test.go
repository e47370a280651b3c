// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// A forecast of slices has the groups of all of them, and a batch of 50% is the first of two.
func TestRelease_Slices(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		style pb.Style
		want  string
	}{
		{pb.Style_STYLE_CANARY, "batch 1 of 2 (50%) 4-2/2-1 +3; batch 2 of 2 (75%) 4-3/2-2 +5; promote 0-4/0-2 +6"},
		{pb.Style_STYLE_PARTITION, "batch 1 of 2 (50%) 3-2/2-1 +2; batch 2 of 2 (75%) 2-3/2-2 +4; promote 0-4/0-2 +4"},
	} {
		policy, bad := record.ParsePolicy(&pb.ReleasePolicy{Style: tt.style, Batches: []string{"50%", "75%"}})
		require.Empty(t, bad)
		one := lws.LeaderWorkerTemplate{Size: ptr.To[int32](1)}
		in := Input{
			Replicas: 4, Slices: 2, Old: one, New: one, Policy: policy, Startup: time.Minute,
			Roles: []Role{{plan.Role{Name: "prefill", Replicas: 2, MaxSurge: 1}, one, one}, {plan.Role{Name: "decode", Replicas: 1, MaxSurge: 1}, one, one}},
		}
		r, err := Release(in)
		require.NoError(t, err)
		var steps []string
		for _, s := range r.GetSteps() {
			prefill, decode := s.GetRoles()[0], s.GetRoles()[1]
			steps = append(steps, fmt.Sprintf("%s %d-%d/%d-%d +%d", s.GetName(), prefill.GetStable(), prefill.GetUpdated(), decode.GetStable(), decode.GetUpdated(), s.GetExtraGroups()))
		}
		if got := strings.Join(steps, "; "); got != tt.want || r.GetSteps()[0].GetRoles()[1].GetReplicas() != 2 {
			t.Errorf("%s: the steps are %s, want %s", tt.style, got, tt.want)
		}
		hasPeak(t, r, policy.Style, in)
	}
}

// hasPeak fails the test unless the largest step of a forecast has the peak of all roles, for which capacity is checked.
func hasPeak(t *testing.T, r *pb.PlanResponse, style pb.Style, in Input) {
	t.Helper()
	most, want := 0, 0
	for _, s := range r.GetSteps() {
		most = max(most, int(s.GetExtraGroups()))
	}
	for _, role := range in.Roles {
		want += plan.PeakOf(style, role.Role, in.Slices)
	}
	assert.Equal(t, want, most, "%s: the forecast has %d extra groups, and the peak is %d", style, most, want)
}

// A release of a DisaggregatedSet is forecast by the same planner: batches have groups of every role, no stable unit is lost before the
// promotion, and the peak is that of all roles.
func TestRelease_Roles(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		policy   *pb.ReleasePolicy
		rollback bool
		want     string
		// unavailable is how many groups of decode may be, which otherwise has a surge. At least so many units are ready.
		unavailable, least int
	}{
		{&pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"25%", "75%"}}, false, "4-1/2-1 +2 +6; 4-3/2-2 +5 +14; 0-4/0-2 +6 +16", 0, 4},
		{&pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"25%"}}, true, "4-1/2-1 +2 +6; 4-0/2-0 +2 +6", 0, 4},
		{&pb.ReleasePolicy{Style: pb.Style_STYLE_BLUE_GREEN, Batches: []string{"100%"}}, false, "4-4/2-2 +6 +16; 0-4/0-2 +6 +16", 0, 4},
		{&pb.ReleasePolicy{
			Style: pb.Style_STYLE_CANARY, Batches: []string{"50%"}, Traffic: &pb.TrafficPolicy{StableService: "llm", HttpRoutes: []string{"llm"}},
		}, false, "4-2/2-1 +3 +8; 0-4/0-2 +6 +16", 0, 4},
		{&pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: []string{"25%", "50%"}}, false, "3-1/1-1 +0 +0; 2-2/1-1 +0 +0; 0-4/0-2 +0 +0", 1, 2},
		{&pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: []string{"25%", "50%"}}, true, "3-1/1-1 +1 +4; 2-2/1-1 +0 +0; 4-0/2-0 +1 +4", 0, 3},
		{&pb.ReleasePolicy{
			Style: pb.Style_STYLE_PARTITION, Batches: []string{"50%"}, Traffic: &pb.TrafficPolicy{StableService: "llm", HttpRoutes: []string{"llm"}},
		}, false, "2-2/1-1 +1 +4; 0-4/0-2 +1 +4", 0, 3},
	} {
		policy, bad := record.ParsePolicy(tt.policy)
		require.Empty(t, bad)
		prefill, decode := lws.LeaderWorkerTemplate{Size: ptr.To[int32](2)}, lws.LeaderWorkerTemplate{Size: ptr.To[int32](4)}
		in := Input{
			Replicas: 4, Slices: 1, Old: prefill, New: prefill, Policy: policy, Startup: time.Minute, Rollback: tt.rollback,
			Roles: []Role{
				{plan.Role{Name: "prefill", Replicas: 4, MaxUnavailable: 1}, prefill, prefill},
				{plan.Role{Name: "decode", Replicas: 2, MaxUnavailable: tt.unavailable, MaxSurge: 1 - tt.unavailable}, decode, decode},
			},
		}
		r, err := Release(in)
		if err != nil {
			t.Errorf("%v: %v", tt.policy, err)
			continue
		}
		var steps []string
		for _, s := range r.GetSteps() {
			var roles []string
			for _, role := range s.GetRoles() {
				roles = append(roles, fmt.Sprintf("%d-%d", role.GetStable(), role.GetUpdated()))
			}
			steps = append(steps, fmt.Sprintf("%s +%d +%d", strings.Join(roles, "/"), s.GetExtraGroups(), s.GetExtraPods()))
		}
		assert.Equal(t, tt.want, strings.Join(steps, "; "), "%v: the steps", tt.policy)
		if !tt.rollback {
			hasPeak(t, r, policy.Style, in)
		}
		assert.True(t, len(r.GetBlockers()) == 0 && !slices.ContainsFunc(r.GetSteps(), func(s *pb.PlanStep) bool { return int(s.GetMinAvailableGroups()) < tt.least }),
			"%v: %v", tt.policy, r)
	}
}
