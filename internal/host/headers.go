// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"strings"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// HeaderRoute routes the requests with a header, or a cookie, to the update revision, whatever its weight.
type HeaderRoute struct {
	// Name is unique within the release: a DNS label.
	Name  string
	Match *pb.HeaderMatch
}

func (h HeaderRoute) String() string {
	switch v := h.Match.GetValue().(type) {
	case *pb.HeaderMatch_Cookie:
		return fmt.Sprintf("cookie %s=%s", h.Match.GetName(), v.Cookie)
	case *pb.HeaderMatch_Regex:
		return fmt.Sprintf("header %s: %s (an expression)", h.Match.GetName(), v.Regex)
	default:
		return fmt.Sprintf("header %s: %s", h.Match.GetName(), h.Match.GetExact())
	}
}

// setHeaders requests the header routes, once for each template.
func (m *machine) setHeaders() step {
	m.headersSet = true
	named := make([]string, 0, len(m.headerRoutes))
	for _, h := range m.headerRoutes {
		named = append(named, h.String())
	}
	return step{action: actHeaders, batch: m.cursor, notes: []note{
		{kind: EventHeaders, message: "sending requests with " + strings.Join(named, " or ") + " to the update revision"},
	}}
}

// setHeaders requests each header route, and reads the state afterwards: the responses have none.
func (r *run) setHeaders(ctx context.Context, _ step) (answer, error) {
	for _, h := range r.machine.headerRoutes {
		_, err := r.host.Driver.SetHeaderRoute(ctx, &pb.SetHeaderRouteRequest{
			Workload: r.release.Workload, ReleaseId: r.release.ID, Name: h.Name, Matches: []*pb.HeaderMatch{h.Match},
			UpdateRevision: r.machine.revision,
		})
		if err != nil {
			return r.checkOutdated(ctx, err)
		}
	}
	return r.look(ctx, r.release.ID)
}

// checkHeaderRoutes returns an error if the driver can't set the header routes of the release.
func checkHeaderRoutes(release Release, info *pb.GetDriverInfoResponse) error {
	if len(release.HeaderRoutes) == 0 {
		return nil
	}
	if release.Policy.GetTraffic() == nil {
		return errors.New("the release has header routes, but its policy has no traffic to split")
	}
	return supports(info, pb.Capability_CAPABILITY_TRAFFIC_HEADER_ROUTE, "the release has header routes, which driver %s does not support")
}
