// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"slices"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// weight returns the canary's weight for the batch at cursor, in percent. It is 0 without a group that can serve requests.
func (m *machine) weight(c *pb.BatchContext) int32 {
	switch {
	case c.GetPlanned() <= 0 || c.GetReplicas() <= 0:
		return 0
	case c.GetStyle() == pb.Style_STYLE_BLUE_GREEN && c.GetPlanned() < c.GetReplicas():
		return 0 // the requests move once the second set is complete
	case len(m.weights) > 0:
		return m.weights[m.cursor]
	default:
		return share(c.GetPlanned(), c.GetReplicas())
	}
}

// share returns part of whole in percent, rounded up as batches are, and at most 100.
func share(part, whole int32) int32 {
	percent := (100*int64(part) + int64(whole) - 1) / int64(whole)
	return int32(min(percent, 100)) //nolint:gosec // It is 100 at most.
}

// hasWeight reports whether the routes have the weight of the batch at cursor.
func (m *machine) hasWeight(c *pb.BatchContext) bool {
	if c.GetStyle() == pb.Style_STYLE_PARTITION && c.GetPlanned() > 0 && c.GetPlanned() >= c.GetReplicas() {
		return true // no stable group is left, so the requests follow the groups
	}
	return !m.routed || c.GetTrafficBasis() == pb.TrafficBasis_TRAFFIC_BASIS_ROUTED && c.GetTrafficWeight() == m.weight(c)
}

// setWeight requests the weight of the batch at cursor.
func (m *machine) setWeight(c *pb.BatchContext) step {
	s := step{action: actWeight, batch: m.cursor, weight: m.weight(c)}
	if m.notedWeight == nil || *m.notedWeight != s.weight {
		m.notedWeight = &s.weight
		s.notes = []note{{kind: EventWeight, message: fmt.Sprintf("sending %d%% of the requests to the update revision", s.weight)}}
	}
	return s
}

// checkWeights returns an error if the weights are invalid, or the driver can't set them.
func checkWeights(release Release, info *pb.GetDriverInfoResponse) error {
	routed, batches := release.Policy.GetTraffic() != nil, len(release.Policy.GetBatches())
	if n := len(release.Weights); n > 0 && !routed {
		return fmt.Errorf("the release has %d weights, but its policy has no traffic to split", n)
	} else if n > 0 && n != batches {
		return fmt.Errorf("the release has %d weights for %d batches: set one for each", n, batches)
	}
	for i, w := range release.Weights {
		if w < 0 || w > 100 {
			return fmt.Errorf("weight %d of batch %d is not 0 to 100", w, i+1)
		}
	}
	if n := len(release.Weights); n > 0 && release.Policy.GetStyle() == pb.Style_STYLE_PARTITION &&
		release.Policy.GetBatches()[n-1] == "100%" && release.Weights[n-1] != 100 {
		return fmt.Errorf("the last batch of a release in place leaves no group for the other %d%% of the requests: its weight is 100",
			100-release.Weights[n-1])
	}
	if !routed {
		return nil
	}
	return supports(info, pb.Capability_CAPABILITY_TRAFFIC_WEIGHT, "the policy has traffic, but driver %s splits no requests")
}

// supports returns an error if a driver does not list a capability. why has a verb for the driver's name.
func supports(info *pb.GetDriverInfoResponse, capability pb.Capability, why string) error {
	if slices.Contains(info.GetCapabilities(), capability) {
		return nil
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED, why+": it does not list %s", info.GetName(), capability)
}
