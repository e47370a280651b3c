// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// weight returns the canary's weight for the batch at cursor, in percent. It is 0 without a group that can serve requests.
func (m *machine) weight(c *pb.BatchContext) int32 {
	groups := c.GetPlanned()
	if all := c.GetBatchPlan(); int(m.cursor) < len(all) {
		groups = min(groups, all[m.cursor].GetGroups()) // the canary keeps more after an autoscaler has removed stable groups
	}
	switch {
	case groups <= 0 || c.GetReplicas() <= 0:
		return 0
	case c.GetStyle() == pb.Style_STYLE_BLUE_GREEN && groups < c.GetReplicas():
		return 0 // the requests move once the second set is complete
	case len(m.Weights) > 0:
		return m.Weights[m.cursor]
	default:
		return percentOf(groups, c.GetReplicas())
	}
}

// percentOf returns part of whole in percent, rounded up as batches are, and at most 100.
func percentOf(part, whole int32) int32 {
	percent := (100*int64(part) + int64(whole) - 1) / int64(whole)
	return int32(min(percent, 100)) //nolint:gosec // It is 100 at most.
}

// hasWeight reports whether the routes have the weight of the batch at cursor.
func (m *machine) hasWeight(c *pb.BatchContext) bool {
	if c.GetStyle() == pb.Style_STYLE_PARTITION && c.GetPlanned() > 0 && c.GetPlanned() >= c.GetReplicas() {
		return true // no stable group is left, so the requests follow the groups
	}
	// Without ROUTED the weight in the context is the share of ready groups.
	return !m.routed || c.GetTrafficBasis() == pb.TrafficBasis_TRAFFIC_BASIS_ROUTED && c.GetTrafficWeight() == m.weight(c)
}

// setWeight requests the weight of the batch at cursor.
func (m *machine) setWeight(c *pb.BatchContext) step {
	s := step{action: actWeight, batch: m.cursor, weight: m.weight(c)}
	if m.notedWeight == nil || *m.notedWeight != s.weight {
		m.notedWeight = &s.weight
		s.notes = []Event{{Kind: EventWeight, Message: fmt.Sprintf("sending %d%% of the requests to the update revision", s.weight)}}
	}
	return s
}

// checkTraffic returns an error if the driver can't route the requests as the release asks for.
func checkTraffic(release Release, info *pb.GetDriverInfoResponse) error {
	if release.Policy.GetTraffic() == nil {
		return nil
	}
	if n := len(release.Weights); n > 0 && release.Policy.GetStyle() == pb.Style_STYLE_PARTITION &&
		release.Policy.GetBatches()[n-1] == "100%" && release.Weights[n-1] != 100 {
		return fmt.Errorf("the last batch of a release in place leaves no group for the other %d%% of the requests: its weight is 100",
			100-release.Weights[n-1])
	}
	if err := requireCapability(info, pb.Capability_CAPABILITY_TRAFFIC_WEIGHT, "the policy has traffic, but driver %s splits no requests"); err != nil {
		return err
	}
	if len(release.HeaderRoutes) == 0 {
		return nil
	}
	return requireCapability(info, pb.Capability_CAPABILITY_TRAFFIC_HEADER_ROUTE, "the release has header routes, which driver %s does not support")
}

// requireCapability returns an error if a driver does not list a capability. why has a verb for the driver's name.
func requireCapability(info *pb.GetDriverInfoResponse, capability pb.Capability, why string) error {
	if slices.Contains(info.GetCapabilities(), capability) {
		return nil
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED, why+": it does not list %s. Leave it out, or use a driver that lists it", info.GetName(), capability)
}

// HeaderRoute routes the requests with a header, or a cookie, to the update revision, whatever its weight.
type HeaderRoute struct {
	// Name is unique within the release: a DNS label.
	Name string
	// Match is of an exact value, or of a cookie.
	Match *pb.HeaderMatch
}

func (h HeaderRoute) String() string {
	if cookie := h.Match.GetCookie(); cookie != "" {
		return fmt.Sprintf("cookie %s=%s", h.Match.GetName(), cookie)
	}
	return fmt.Sprintf("header %s: %s", h.Match.GetName(), h.Match.GetExact())
}

// setHeaders requests the header routes, once for each template.
func (m *machine) setHeaders() step {
	m.headersSet = true
	named := make([]string, 0, len(m.HeaderRoutes))
	for _, h := range m.HeaderRoutes {
		named = append(named, h.String())
	}
	return step{action: actHeaders, batch: m.cursor, notes: []Event{
		{Kind: EventHeaders, Message: "sending requests with " + strings.Join(named, " or ") + " to the update revision"},
	}}
}

// setHeaders requests each header route, and reads the state afterwards: the responses have none.
func (r *run) setHeaders(ctx context.Context, _ step) (answer, error) {
	for _, h := range r.machine.HeaderRoutes {
		_, err := r.host.Driver.SetHeaderRoute(ctx, &pb.SetHeaderRouteRequest{
			Workload: r.machine.Workload, ReleaseId: r.machine.ID, Name: h.Name, Matches: []*pb.HeaderMatch{h.Match},
			UpdateRevision: r.machine.revision,
		})
		if err != nil {
			return r.checkOutdated(ctx, err)
		}
	}
	return r.readContext(ctx)
}
