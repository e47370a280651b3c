// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"math"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// Pace returns the configuration under which LWS promotes: the user's own. After a scale-down under the hold both of the
// user's numbers may round to 0, which LWS refuses; then one group at a time may be unavailable.
func Pace(saved rolling, replicas int) rolling {
	if scaled(saved.MaxUnavailable, replicas, false) == 0 && scaled(saved.MaxSurge, replicas, true) == 0 && replicas > 0 {
		saved.MaxUnavailable = intstr.FromInt32(1)
	}
	return record.Native(saved)
}

// scaled returns v of replicas as LWS computes it. An unreadable value counts as 1; the API server will refuse it. A percentage may
// have any number of digits, so the result is limited to the numbers that the spec can have.
func scaled(v intstr.IntOrString, replicas int, up bool) int {
	n, err := intstr.GetScaledValueFromIntOrPercent(&v, replicas, up)
	if err != nil {
		return 1
	}
	return min(max(n, math.MinInt32), math.MaxInt32)
}

// pace returns the LWS rolling update configuration for this release: the user's own, in place without a surge, and
// without limits while the workload's groups receive no requests.
func (o Observation) pace(saved rolling) rolling {
	switch {
	case o.inPlace():
		saved = inPlacePace(saved)
	case o.stableIdle():
		saved = rolling{MaxUnavailable: intstr.FromString("100%"), MaxSurge: intstr.FromInt32(0)}
	}
	return o.skipBrokenGroups(Pace(saved, o.Stable.Replicas))
}

// hold returns the configuration under which LWS rolls nothing by itself.
func hold() *rolling { return ptr.To(record.Hold()) }

// isHold reports whether LWS rolls nothing under a configuration. It may still keep surge groups.
func isHold(r rolling) bool {
	return ptr.Deref(r.Partition, 0) == ptr.Deref(record.Hold().Partition, 0)
}

// holdWithSurge returns the hold of a rollback: the surge groups that exist stay until the others are restored, since they serve.
func (o Observation) holdWithSurge() rolling {
	h, surge := record.Hold(), len(o.Stable.existingFrom(o.Stable.Replicas))
	if surge > 0 {
		h.MaxSurge = intstr.FromInt32(int32(surge))
	}
	if isHold(o.Stable.Rolling) && surge > 0 && scaled(o.Stable.Rolling.MaxSurge, o.Stable.Replicas, true) > 0 {
		h.MaxSurge = o.Stable.Rolling.MaxSurge // one that is lost meanwhile is no reason to write
	}
	return h
}

// recordRolling adds to a write of the record the configuration that it sets, and changes by other clients since the last write: those
// are the user's.
func recordRolling(o Observation, d Decision) Decision {
	a, ok := d.Action.(SetStable)
	if !ok || a.Rolling == nil {
		return d
	}
	if o.Record != nil {
		a.Record.Saved = Saved(o)
		if !record.SameRolling(lastSet(o), o.Stable.Rolling) {
			d = d.repairs("the rolling update configuration", o.Stable.RolledBy)
		}
	}
	a.Record = a.Record.WithSet(*a.Rolling)
	d.Action = a
	return d
}

// lastSet returns the configuration that the driver set last. If that was not the hold but the hold is found, the
// admission policy has set it with a new template: its partition identifies it, since no user sets one so high.
func lastSet(o Observation) rolling {
	set, found, hold := o.Record.LastSet(), o.Stable.Rolling, record.Hold()
	if ptr.Deref(found.Partition, 0) != ptr.Deref(hold.Partition, 0) {
		return set
	}
	set.Partition, set.MaxSurge = hold.Partition, hold.MaxSurge
	none := set.MaxUnavailable.Type == intstr.String || scaled(set.MaxUnavailable, o.Stable.Replicas, false) == 0
	if none && found.MaxUnavailable == hold.MaxUnavailable {
		set.MaxUnavailable = hold.MaxUnavailable // LWS requires it, and the admission policy sets it
	}
	return set
}

// Saved returns the user's own configuration, with changes by other clients since the driver's last write.
func Saved(o Observation) rolling { return record.Absorb(o.Record.Saved, lastSet(o), o.Stable.Rolling) }

// rollsAtPace reports whether LWS rolls at the pace of this release.
func rollsAtPace(o Observation) bool {
	set := lastSet(o)
	return !isHold(set) && record.SameRolling(o.Stable.Rolling, set) &&
		record.SameRolling(set, o.pace(o.Record.Saved))
}
