// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/release"
)

// Pace is the configuration under which LWS promotes: the user's own. Where a scale-down under the hold made both of the
// user's numbers round to 0, which LWS refuses and could not roll with, one group at a time may be unavailable.
func Pace(saved rolling, replicas int) rolling {
	if scaled(saved.MaxUnavailable, replicas, false) == 0 && scaled(saved.MaxSurge, replicas, true) == 0 && replicas > 0 {
		return floored(saved)
	}
	return release.Native(saved)
}

func floored(saved rolling) rolling {
	saved.MaxUnavailable = intstr.FromInt32(1)
	return release.Native(saved)
}

// scaled is v of replicas as LWS computes it. What LWS could not read counts as set: the API server will say so.
func scaled(v intstr.IntOrString, replicas int, up bool) int {
	n, err := intstr.GetScaledValueFromIntOrPercent(&v, replicas, up)
	if err != nil {
		return 1
	}
	return n
}

// lastSet is the configuration that the driver had set, as the one that is found tells. The partition tells the hold,
// which is in force until the promotion's first write, and again when admission put it back with a new template. The
// floor stays when a scale-up makes the user's percentage count again: taking it for a wish would lose the percentage.
func lastSet(o Observation) rolling {
	saved, found := o.Record.Saved, o.Stable.Rolling
	switch {
	case ptr.Deref(found.Partition, 0) == ptr.Deref(release.Hold().Partition, 0):
		return release.Hold()
	case saved.MaxUnavailable.Type == intstr.String && scaled(saved.MaxSurge, o.Stable.Replicas, true) == 0 &&
		found.MaxUnavailable == floored(saved).MaxUnavailable:
		return floored(saved)
	}
	return Pace(saved, o.Stable.Replicas)
}

// Saved is what to save of the user's under hold, with what somebody changed since the driver last looked.
func Saved(o Observation) rolling {
	return release.Absorb(o.Record.Saved, release.Hold(), o.Stable.Rolling)
}

// absorbPace returns what to save of the user's while a promotion is under way.
func absorbPace(o Observation) rolling {
	return release.Absorb(o.Record.Saved, lastSet(o), o.Stable.Rolling)
}

// paced says whether the promotion's configuration is in force.
func paced(o Observation) bool {
	set := lastSet(o)
	return !release.SameRolling(set, release.Hold()) && release.SameRolling(o.Stable.Rolling, set)
}
