// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
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
	case o.idle():
		saved = rolling{MaxUnavailable: intstr.FromString("100%"), MaxSurge: intstr.FromInt32(0)}
	}
	return o.around(Pace(saved, o.Stable.Replicas))
}

// noted returns a with a note of what it sets, where phase and saved configuration do not tell that: in a canary's release
// only on the way back. What somebody changed since is the user's, even where a leaves it as it is.
func noted(o Observation, a SetStable) SetStable {
	if a.Record.Release == nil {
		return a
	}
	canary, was := o.Policy.Style == pb.Style_STYLE_CANARY, o.release() != nil && o.release().Set != nil
	if was || !canary {
		a.Record.Saved = Saved(o)
	}
	r, set := *a.Record.Release, a.Rolling
	r.Set, a.Record.Release = &set, &r
	if canary && r.Phase != record.Returning {
		r.Set = nil
	}
	return a
}

// lastSet is the configuration that the driver had set: as it noted, or as the one that is found tells. The partition tells
// the hold, which is in force until the promotion's first write, and again when admission put it back with a new template.
// The floor stays when a scale-up makes the user's percentage count again: taking it for a wish would lose the percentage.
func lastSet(o Observation) rolling {
	saved, found, hold := o.Record.Saved, o.Stable.Rolling, record.Hold()
	held := ptr.Deref(found.Partition, 0) == ptr.Deref(hold.Partition, 0)
	r := o.release()
	switch {
	case r != nil && r.Set != nil && held:
		set := *r.Set
		set.Partition, set.MaxSurge = hold.Partition, hold.MaxSurge
		floor := set.MaxUnavailable.Type == intstr.String || scaled(set.MaxUnavailable, o.Stable.Replicas, false) == 0
		if floor && found.MaxUnavailable == hold.MaxUnavailable {
			set.MaxUnavailable = hold.MaxUnavailable // as LWS wants it, and the admission policy sets it
		}
		return set
	case r != nil && r.Set != nil:
		return *r.Set
	case held:
		return hold
	case saved.MaxUnavailable.Type == intstr.String && scaled(saved.MaxSurge, o.Stable.Replicas, true) == 0 &&
		found.MaxUnavailable == floored(saved).MaxUnavailable:
		return floored(saved)
	}
	return Pace(saved, o.Stable.Replicas)
}

// Saved is what to save of the user's under hold, with what somebody changed since the driver last looked.
func Saved(o Observation) rolling {
	set := record.Hold()
	if r := o.release(); r != nil && r.Set != nil {
		set = lastSet(o)
	}
	return record.Absorb(o.Record.Saved, set, o.Stable.Rolling)
}

// absorbPace returns what to save of the user's while a promotion is under way.
func absorbPace(o Observation) rolling {
	return record.Absorb(o.Record.Saved, lastSet(o), o.Stable.Rolling)
}

// paced says whether the promotion's configuration is in force.
func paced(o Observation) bool {
	set := lastSet(o)
	if record.SameRolling(set, record.Hold()) || !record.SameRolling(o.Stable.Rolling, set) {
		return false
	}
	return o.release().Set == nil || record.SameRolling(set, o.pace(o.Record.Saved))
}
