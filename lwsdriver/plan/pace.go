// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// Pace is the configuration under which LWS promotes: the user's own. Where a scale-down under the hold made both of the
// user's numbers round to 0, which LWS refuses and could not roll with, one group at a time may be unavailable.
func Pace(saved rolling, replicas int) rolling {
	if scaled(saved.MaxUnavailable, replicas, false) == 0 && scaled(saved.MaxSurge, replicas, true) == 0 && replicas > 0 {
		return floored(saved)
	}
	return record.Native(saved)
}

func floored(saved rolling) rolling {
	saved.MaxUnavailable = intstr.FromInt32(1)
	return record.Native(saved)
}

// scaled is v of replicas as LWS computes it. What LWS could not read counts as set: the API server will say so.
func scaled(v intstr.IntOrString, replicas int, up bool) int {
	n, err := intstr.GetScaledValueFromIntOrPercent(&v, replicas, up)
	if err != nil {
		return 1
	}
	return n
}

// pace is the configuration under which LWS rolls the workload's groups in this release: the user's own pace, but in place
// without a surge, and as fast as it can while requests do not need those groups.
func (o Observation) pace(saved rolling) rolling {
	switch {
	case o.inPlace():
		saved = inPlacePace(saved)
	case o.stableIdle():
		saved = rolling{MaxUnavailable: intstr.FromString("100%"), MaxSurge: intstr.FromInt32(0)}
	}
	return o.skipBrokenGroups(Pace(saved, o.Stable.Replicas))
}

// hold is the configuration under which LWS rolls nothing by itself, to be set.
func hold() *rolling { return ptr.To(record.Hold()) }

// recordRolling returns the write with a note of the configuration that it sets, and with what somebody else changed since the last
// one: that is the user's.
func recordRolling(o Observation, a SetStable) SetStable {
	if a.Rolling == nil {
		return a
	}
	if o.Record != nil {
		a.Record.Saved = Saved(o)
	}
	a.Record = a.Record.WithSet(*a.Rolling)
	return a
}

// lastSet is the configuration that the driver has set last. Where that was not the hold and the hold is found all the same,
// the admission policy has put it there with a new template: its partition tells, since no user has one so high.
func lastSet(o Observation) rolling {
	set, found, hold := o.Record.LastSet(), o.Stable.Rolling, record.Hold()
	if ptr.Deref(found.Partition, 0) != ptr.Deref(hold.Partition, 0) {
		return set
	}
	set.Partition, set.MaxSurge = hold.Partition, hold.MaxSurge
	none := set.MaxUnavailable.Type == intstr.String || scaled(set.MaxUnavailable, o.Stable.Replicas, false) == 0
	if none && found.MaxUnavailable == hold.MaxUnavailable {
		set.MaxUnavailable = hold.MaxUnavailable // as LWS wants it, and the admission policy sets it
	}
	return set
}

// Saved is what to save of the user's own configuration, with what somebody else changed since the driver's last write.
func Saved(o Observation) rolling { return record.Absorb(o.Record.Saved, lastSet(o), o.Stable.Rolling) }

// paced reports whether LWS rolls at the pace of this release.
func paced(o Observation) bool {
	set := lastSet(o)
	return !record.SameRolling(set, record.Hold()) && record.SameRolling(o.Stable.Rolling, set) &&
		record.SameRolling(set, o.pace(o.Record.Saved))
}
