// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/capacity"
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

// TestPeak: quotas and nodes are compared with the groups that a release adds at its peak: as many as the forecast shows.
func TestPeak(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := rapid.SampledFrom([]*pb.ReleasePolicy{
			{Style: pb.Style_STYLE_CANARY, Batches: []string{"1", "3"}},
			{Style: pb.Style_STYLE_CANARY, Batches: []string{"10%", "50%"}},
			{Style: pb.Style_STYLE_CANARY, Batches: []string{"100%"}, Traffic: routes()},
			{Style: pb.Style_STYLE_BLUE_GREEN, Batches: []string{"50%", "100%"}},
			{Style: pb.Style_STYLE_BLUE_GREEN, Batches: []string{"50%", "100%"}, Traffic: routes()},
			{Style: pb.Style_STYLE_PARTITION, Batches: []string{"50%", "100%"}},
			handover(routes(), "50%", "100%"),
			handover(nil, "50%", "100%"),
		}).Draw(rt, "policy")
		in := input(t, p)
		in.Replicas = rapid.IntRange(1, 12).Draw(rt, "replicas")
		amounts := rapid.SampledFrom([]string{"0", "1", "2", "25%", "100%"})
		in.Rolling = rolling(amounts.Draw(rt, "maxUnavailable"), amounts.Draw(rt, "maxSurge"))
		in.StatefulSetMaxUnavailable = rapid.Bool().Draw(rt, "parallel")
		r, err := Release(in)
		require.NoError(rt, err)
		most := 0
		for _, s := range r.GetSteps() {
			most = max(most, int(s.GetExtraGroups()))
		}
		if peak := capacity.PeakOf(in.Policy, in.Rolling, in.Replicas); peak.Groups() != most {
			rt.Fatalf("%+v, but the forecast has %d:\n%v", peak, most, lines(r))
		}
	})
}

// Whatever the ratio of the entry role to another one, each batch of T units has ceil(T x Ri / Re) groups of it: at least one, never fewer than
// before, and exactly Ri at the end. Where units are replaced, no role ever exceeds its maxSurge or lacks more than its maxUnavailable.
func TestRelease_Ratios(t *testing.T) {
	t.Parallel()
	for _, style := range []pb.Style{pb.Style_STYLE_CANARY, pb.Style_STYLE_PARTITION} {
		for entry := 1; entry <= 9; entry++ {
			for other := 1; other <= 9; other++ {
				t.Run(fmt.Sprintf("%s %d:%d", style, entry, other), func(t *testing.T) {
					t.Parallel()
					for _, surges := range []bool{true, false} {
						releaseRatio(t, style, surges, entry, other)
					}
				})
			}
		}
	}
}

// releaseRatio releases a set with one batch for each unit. Its roles replace the groups of a unit in place, or else by a surge.
func releaseRatio(t *testing.T, style pb.Style, surges bool, entry, other int) {
	t.Helper()
	p := &pb.ReleasePolicy{Style: style}
	for units := 1; units <= entry; units++ {
		p.Batches = append(p.Batches, fmt.Sprint(units))
	}
	policy, bad := record.ParsePolicy(p)
	if len(bad) > 0 {
		t.Fatal(bad)
	}
	of := lws.LeaderWorkerTemplate{Size: ptr.To[int32](1)}
	in := Input{Replicas: entry, Old: of, New: of, Policy: policy}
	for i, n := range []int{entry, other} {
		role, unit := plan.Role{Name: []string{"decode", "prefill"}[i], Replicas: n}, (n+entry-1)/entry
		if n%entry > 0 {
			unit++ // both revisions round their parts up
		}
		if surges || n < 2*unit {
			role.MaxSurge = unit // the last unit stays until the promotion
		} else {
			role.MaxUnavailable = unit
		}
		in.Roles = append(in.Roles, Role{role, of, of})
	}
	w := newWorld(in)
	r := newRecorder(in, w)
	r.begin("release")
	w.changed = func() {
		r.addWorldFrame()
		for i, role := range w.roles() {
			of := in.Roles[i]
			exist, ready := int(role.GetStable()+role.GetUpdated()), int(role.GetStableReady()+role.GetUpdatedReady())
			if plan.InPlace(style) && (exist > of.Replicas+of.MaxSurge || ready < of.Replicas-of.MaxUnavailable) {
				t.Errorf("%+v has %d groups, %d of them ready", of.Role, exist, ready)
			}
		}
	}
	last := []int32{1, 1}
	for batch := range p.Batches {
		require.NoError(t, w.runBatch(r, batch))
		for i, role := range w.roles() {
			n, want := role.GetUpdatedReady(), int32(((batch+1)*in.Roles[i].Replicas+entry-1)/entry)
			if n < last[i] || n > want || n < want && !plan.InPlace(style) {
				t.Errorf("%d units have %d of %d groups of %s, after %d", batch+1, n, want, role.GetName(), last[i])
			}
			last[i] = n
		}
	}
	require.NoError(t, w.request(plan.Promote{ReleaseID: releaseID}))
	require.NoError(t, w.until(r, pb.State_STATE_COMPLETED))
	for i, role := range w.roles() {
		if n := int(role.GetUpdatedReady()); n != in.Roles[i].Replicas || role.GetStable() != 0 {
			t.Errorf("%d groups of %s are at the new revision at the end, and %d at the old one", n, role.GetName(), role.GetStable())
		}
	}
}

const (
	canary    = pb.Style_STYLE_CANARY
	blueGreen = pb.Style_STYLE_BLUE_GREEN
	partition = pb.Style_STYLE_PARTITION
)

// strategies are the rows of docs/plan.md: 4 groups of 2 pods with 8 GPUs each, 10 minutes to start a group.
var strategies = []struct {
	name               string
	style              pb.Style
	batches            []string
	unavailable, surge string
	routed, adopted    bool
}{
	{name: "Rolling, 1 unavailable", style: canary, batches: []string{"0"}, unavailable: "1", surge: "0"},
	{name: "Rolling, surge 1", style: canary, batches: []string{"0"}, unavailable: "0", surge: "1"},
	{name: "Recreate", style: canary, batches: []string{"0"}, unavailable: "100%", surge: "0"},
	{name: "Partition 25%, 50%, 100%", style: partition, batches: []string{"25%", "50%", "100%"}, unavailable: "1", surge: "0"},
	{name: "Approval per group", style: partition, batches: []string{"1", "2", "3", "4"}, unavailable: "1", surge: "0"},
	{name: "Canary 25%, 50%, 100%", style: canary, batches: []string{"25%", "50%", "100%"}, unavailable: "1", surge: "0", routed: true},
	{name: "Canary of 1 group", style: canary, batches: []string{"1"}, unavailable: "1", surge: "0", routed: true},
	{name: "Blue-green", style: blueGreen, batches: []string{"100%"}, unavailable: "1", surge: "0", routed: true},
	{name: "Blue-green, adopted", style: blueGreen, batches: []string{"100%"}, unavailable: "1", surge: "0", routed: true, adopted: true},
}

// TestStrategiesDocument checks that the figures in the documentation are the planner's.
func TestStrategiesDocument(t *testing.T) {
	document, err := os.ReadFile("../../docs/plan.md")
	require.NoError(t, err)
	for _, s := range strategies {
		var in Input
		plan := func(parallel, rollback bool) *pb.PlanResponse {
			policy := &pb.ReleasePolicy{Style: s.style, Batches: s.batches}
			if s.routed {
				policy.Traffic = routes()
			}
			if s.adopted {
				policy.BlueGreen = &pb.BlueGreenPolicy{Promotion: pb.BluePromotion_BLUE_PROMOTION_ADOPT}
			}
			in = input(t, policy)
			in.Rolling, in.StatefulSetMaxUnavailable, in.Rollback = rolling(s.unavailable, s.surge), parallel, rollback
			r, err := Release(in)
			require.NoError(t, err)
			return r
		}
		r, fast, back := plan(false, false), plan(true, false), "a second update"
		if s.batches[0] != "0" {
			steps := plan(false, true).GetSteps()
			back = fmt.Sprintf("%.0f min", steps[len(steps)-1].GetEstimate().AsDuration().Minutes())
		}
		least, extra, gpus := 1.0, int32(0), "0"
		for _, step := range append(r.GetSteps(), fast.GetSteps()...) {
			least = min(least, step.GetMinCapacity())
			if step.GetExtraGroups() > extra {
				extra, gpus = step.GetExtraGroups(), step.GetExtraResources()["nvidia.com/gpu"]
			}
		}
		row := fmt.Sprintf("| %s | %.0f %% | %d | %s | %.0f min | %.0f min | %s |", s.name, 100*least, extra, gpus,
			r.GetEstimate().AsDuration().Minutes(), fast.GetEstimate().AsDuration().Minutes(), back)
		assert.Contains(t, string(document), row+"\n", "docs/plan.md lacks this row:\n%s", row)
	}
}
