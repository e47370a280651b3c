// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/capacity"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

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
