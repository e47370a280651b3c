// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/simulate/native"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Peak is the largest number of groups that a release has on top of the workload's own. It is reached during promotion: the
// added groups stay while the workload's own roll with the user's maxSurge.
type Peak struct {
	// Added are the groups of the second workload, Surge those that LWS adds by maxSurge.
	Added, Surge int
}

// PeakOf returns the peak of a release of so many replicas under the user's own rolling update configuration.
func PeakOf(policy record.Policy, own lws.RollingUpdateConfiguration, replicas int) Peak {
	p := Peak{Surge: native.LimitsOf(own, replicas).Surge()}
	switch policy.Style {
	case pb.Style_STYLE_CANARY:
		p.Added = policy.Batches[len(policy.Batches)-1].Up(replicas)
	case pb.Style_STYLE_BLUE_GREEN:
		p.Added = replicas
		if policy.Traffic != nil || policy.Adopt {
			p.Surge = 0 // the first set is replaced without requests and without a surge, or not at all
		}
	case pb.Style_STYLE_PARTITION:
		p.Surge = 0 // a release in place adds none
	default: // the workload's own rolling update
	}
	return p
}

// Groups returns the sum.
func (p Peak) Groups() int { return p.Added + p.Surge }
