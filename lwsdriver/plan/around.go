// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// On the way back natively LWS counts a group that is broken at the revision it leaves against maxUnavailable, and takes no
// group above it; nobody will mend that one. So it is restarted by itself, which costs nothing that serves and brings it
// back at the stable revision, unless the leader StatefulSet had completed the other one. Then LWS is led around it.

// blockingGroup is a group to restart while LWS rolls natively: it strays and does not serve. One that was ready before may be
// so again, and is left alone until the release is stuck. Nil: there is none.
func (o Observation) blockingGroup(stuck bool) *Group {
	if !o.Stable.Observed {
		return nil // the StatefulSet may have the other template still
	}
	strays := o.groupsOffRevision()
	for i, g := range strays {
		if !g.Ready && !g.Terminating && !restartsExhausted(g) && (stuck || g.FirstReady.IsZero()) {
			return &strays[i]
		}
	}
	return nil
}

// skipBrokenGroups is the pace at which LWS takes the groups that serve past those that are broken for good: these count no more
// against maxUnavailable, and the partition sees to it that of those no more are taken at a time for that. Pace, the
// user's, where there are none.
func (o Observation) skipBrokenGroups(pace rolling) rolling {
	r := o.release()
	if r.Phase != record.RollingBack || o.Stable.Revision != r.StableRevision {
		return pace
	}
	broken, serving := 0, make([]bool, o.Stable.Replicas)
	moves := len(o.Stable.above(0)) < o.Stable.Replicas
	for _, g := range o.Stable.above(0) {
		stray := g.Revision != "" && !g.at(r.StableRevision)
		switch {
		case stray && !g.Ready && !g.Terminating && restartsExhausted(g):
			broken++
		case stray && g.Ready && !g.Terminating:
			serving[g.Index] = true
		case !g.available(o.Now, o.Policy.MinReady):
			moves = true
		}
	}
	switch {
	case broken == 0:
		return pace
	case moves && !record.SameRolling(o.Record.LastSet(), record.Hold()):
		return o.Record.LastSet() // no further, until what was taken is back
	case moves:
		return pace
	}
	may := scaled(pace.MaxUnavailable, o.Stable.Replicas, false)
	pace.MaxUnavailable = intstr.FromInt(may + broken)
	pace.Partition = ptr.To(int32(lowest(serving, max(may, 1)))) //nolint:gosec // a number of groups
	return pace
}

// lowest is the lowest index such that, from it on, no more groups than may go serve.
func lowest(serving []bool, may int) int {
	for i := len(serving) - 1; i >= 0; i-- {
		if serving[i] {
			may--
		}
		if may < 0 {
			return i + 1
		}
	}
	return 0
}
