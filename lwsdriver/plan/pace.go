// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/release"
)

// pace is the configuration under which LWS promotes: the user's own. Where a scale-down under the hold made both of the
// user's numbers round to 0, which LWS refuses and could not roll with, one group at a time may be unavailable.
func pace(saved rolling, replicas int) rolling {
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

// paced says whether the promotion's configuration is in force. The floor stays in force when a scale-up makes the
// user's percentage count again: taking it for the user's wish would lose the percentage.
func paced(o Observation) bool {
	saved, found := o.Record.Saved, o.Stable.Rolling
	if release.SameRolling(found, pace(saved, o.Stable.Replicas)) {
		return true
	}
	return saved.MaxUnavailable.Type == intstr.String && scaled(saved.MaxSurge, o.Stable.Replicas, true) == 0 &&
		release.SameRolling(found, floored(saved))
}

// absorbPace returns what to save of the user's while a promotion is under way. The partition tells what the driver had
// set: the hold is in force until the promotion's first write, and again when admission put it back with a new template.
func absorbPace(o Observation) rolling {
	if ptr.Deref(o.Stable.Rolling.Partition, 0) == ptr.Deref(release.Hold().Partition, 0) {
		return release.Absorb(o.Record.Saved, release.Hold(), o.Stable.Rolling)
	}
	if paced(o) {
		return o.Record.Saved
	}
	return release.Absorb(o.Record.Saved, pace(o.Record.Saved, o.Stable.Replicas), o.Stable.Rolling)
}
