// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"sync"
	"time"

	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// Snapshot is an observed workload: what the planner decides from, and the cached objects that a write is based on, which must
// not be modified.
type Snapshot struct {
	plan.Observation

	// StableObject is the user's workload, a DisaggregatedSet as its view. It is nil once it no longer exists.
	StableObject *lws.LeaderWorkerSet
	// AddedObjects are the workloads that a release added to it, or the children of a DisaggregatedSet, by name. The units of a revision have
	// an entry, too: a child of the revision in the first slice.
	AddedObjects map[string]*lws.LeaderWorkerSet
	// Set is the DisaggregatedSet, nil for another workload. BoundsObject bounds its children, and is nil without bounds.
	Set          *Set
	BoundsObject *BoundsObject
	// Setup describes the release's traffic. Nil means it routes none.
	Setup *traffic.Setup
	// copied is the policy of a release that was dropped, since its record is a copy. Nil means that none was.
	copied *record.Policy
	// Recheck is when the observation may change although no object does. Zero means never.
	Recheck time.Duration
	// Distrusted describes an invalid annotation that is ignored. Empty means none.
	Distrusted string
	// Shared has what readers compute of the snapshot once for all of them.
	Shared sync.Map
}

// RecheckAfter lowers Recheck to d if d is sooner. It ignores a zero d.
func (s *Snapshot) RecheckAfter(d time.Duration) {
	if d > 0 && (s.Recheck == 0 || d < s.Recheck) {
		s.Recheck = d
	}
}

// Template returns the template in the spec.
func (s *Snapshot) Template() record.Template {
	if s.Set == nil {
		return record.TemplateOf(s.StableObject)
	}
	return s.Set.Template()
}

// CanaryName returns the name of the workload that a release adds for a revision.
func (s *Snapshot) CanaryName(revision string) string {
	return record.CanaryName(s.Record.KnownAs(s.Key.Name), s.Key.Name, revision)
}

// SetupFor returns the traffic setup of a release by this policy that has not begun. The policy must have traffic.
func (s *Snapshot) SetupFor(policy record.Policy) traffic.Setup {
	stable := unknownRevision
	if revisions := s.StableRevisions(); len(revisions) == 1 {
		stable = revisions[0]
	}
	setup := s.setup(policy, s.CanaryName(s.Stable.Revision), stable, s.Stable.Revision, nil)
	setup.Adopts = policy.Adopt
	return setup
}
