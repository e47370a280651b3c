// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-rollouts/lockstep/traffic"
)

// Traffic is the routing that a host requested, as the record has it.
type Traffic struct {
	// Weight is the canary's share and Mirror the share copied to it, in percent.
	Weight int `json:"weight,omitempty"`
	Mirror int `json:"mirror,omitempty"`
	// Groups is the number of groups that were planned when the weight was requested. 0 means unknown.
	Groups int `json:"groups,omitempty"`
	// HeaderRoutes select requests for the canary whatever the weight, sorted by name.
	HeaderRoutes []traffic.HeaderRoute `json:"headerRoutes,omitempty"`
}

// RequestedWeight returns the canary's share in percent; 0 for nil.
func (t *Traffic) RequestedWeight() int {
	if t == nil {
		return 0
	}
	return t.Weight
}

// With returns a changed copy of t, nil if it requests nothing.
func (t *Traffic) With(change func(*Traffic)) *Traffic {
	next := Traffic{}
	if t != nil {
		next = *t
		// A change works in place, and t belongs to the observation.
		next.HeaderRoutes = slices.Clone(t.HeaderRoutes)
	}
	change(&next)
	if next.Weight == 0 && next.Mirror == 0 && len(next.HeaderRoutes) == 0 {
		return nil
	}
	return &next
}

// SetHeaderRoute adds, replaces or, without matches, removes a header route.
func (t *Traffic) SetHeaderRoute(r traffic.HeaderRoute) {
	t.HeaderRoutes = slices.DeleteFunc(t.HeaderRoutes, func(h traffic.HeaderRoute) bool { return h.Name == r.Name })
	if len(r.Matches) == 0 {
		return
	}
	t.HeaderRoutes = append(t.HeaderRoutes, r)
	slices.SortFunc(t.HeaderRoutes, func(a, b traffic.HeaderRoute) int { return strings.Compare(a.Name, b.Name) })
}

func (t *Traffic) validate() error {
	if t == nil {
		return nil
	}
	if t.Weight < 0 || t.Weight > 100 || t.Mirror < 0 || t.Mirror > 100 {
		return fmt.Errorf("traffic: weight %d and mirror %d must be 0 to 100", t.Weight, t.Mirror)
	}
	if t.Groups < 0 {
		return fmt.Errorf("traffic: %d groups must not be negative", t.Groups)
	}
	if excess := traffic.Excess(t.HeaderRoutes); excess != "" {
		return fmt.Errorf("traffic: %s", excess)
	}
	for i, r := range t.HeaderRoutes {
		if len(r.Matches) == 0 {
			return fmt.Errorf("traffic: header route %q has no matches", r.Name)
		}
		if bad := r.Violations(); len(bad) > 0 {
			return fmt.Errorf("traffic: header route %q: %s %s", r.Name, bad[0].Field, bad[0].Description)
		}
		if i > 0 && r.Name <= t.HeaderRoutes[i-1].Name {
			return fmt.Errorf("traffic: header route %q is duplicated, or out of order", r.Name)
		}
	}
	return nil
}
