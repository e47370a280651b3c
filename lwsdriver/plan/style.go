// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// style is what distinguishes one way of releasing from another: a value, not a controller.
type style struct {
	// advance takes the workload towards the target.
	advance func(Observation, Progress) Decision
	// inPlace: the groups of the user's own workload are replaced. Otherwise the new ones come up beside them.
	inPlace bool
	// switches: requests move once every group that the workload has is there a second time, and promotion moves them.
	switches bool
}

// styleOf returns the style's value, and whether this driver can plan it.
func styleOf(s pb.Style) (style, bool) {
	switch s {
	case pb.Style_STYLE_CANARY:
		return style{advance: advanceCanary}, true
	case pb.Style_STYLE_BLUE_GREEN:
		return style{advance: advanceCanary, switches: true}, true
	case pb.Style_STYLE_PARTITION:
		return style{advance: advancePartition, inPlace: true}, true
	default:
		return style{}, false
	}
}

// Supports says whether a release of this style can be planned.
func Supports(s pb.Style) bool {
	_, ok := styleOf(s)
	return ok
}

// InPlace says whether releases of a style replace the groups of the user's own workload.
func InPlace(s pb.Style) bool {
	st, _ := styleOf(s)
	return st.inPlace
}

func (o Observation) inPlace() bool { return o.release() != nil && InPlace(o.Policy.Style) }

func (o Observation) switches() bool {
	st, _ := styleOf(o.Policy.Style)
	return o.release() != nil && st.switches
}
