// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Undo requests the template of an older revision back into the spec, where it waits under the hold for a release.
type Undo struct {
	// Revision is the template revision hash. Empty: the newest that served before the one in the spec.
	Revision string
}

// decide holds the workload in the same write: one that is not held would roll at once.
func (u Undo) decide(o Observation) (Decision, error) {
	if err := CheckWorkload(o); err != nil {
		return Decision{}, err
	}
	if err := checkRead(o); err != nil {
		return Decision{}, err
	}
	if InFlight(o) {
		return Decision{}, inProgress(o,
			"release %q of LeaderWorkerSet %s is not over: roll it back, or wait for its end, and then undo", o.release().ID, o.Key)
	}
	revision, err := u.Target(o)
	if err != nil || revision == o.Stable.Revision {
		return Decision{}, err
	}
	a := RestoreTemplate{Revision: revision}
	if o.Record == nil || !record.SameRolling(record.Hold(), o.Stable.Rolling) {
		record := NewRecord(o)
		if o.Record != nil {
			record.Saved = Saved(o)
		}
		a.Record = &record
	}
	return Decision{Action: a}, nil
}

// Target is the revision whose template is wanted. The error has an ErrorReason.
func (u Undo) Target(o Observation) (string, error) {
	if u.Revision == "" {
		return previous(o)
	}
	e := o.entry(u.Revision)
	switch {
	case e != nil && e.Problem != "":
		return "", drivererr.New(pb.ErrorReason_ERROR_REASON_RECORD_INVALID, "%s", e.Problem)
	case e == nil && u.Revision != o.Stable.Revision && !slices.Contains(o.Stable.Recorded, u.Revision):
		return "", drivererr.New(pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND,
			"the history of LeaderWorkerSet %s has no revision %s (any more)%s. Bring its template back with kubectl apply or from Git",
			o.Key, u.Revision, entries(o))
	}
	return u.Revision, nil
}

// previous is the newest revision that served before the one in the spec.
func previous(o Observation) (string, error) {
	if o.Stable.Revision == "" {
		return "", drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED,
			"the LeaderWorkerSet controller has not recorded the template of %s yet, so it can't be told what came before it", o.Key)
	}
	var newest Entry
	for _, e := range o.History {
		if e.Problem == "" && e.Revision != o.Stable.Revision && e.Outcome != RolledBack && e.Number > newest.Number {
			newest = e
		}
	}
	if newest.Revision == "" {
		return "", drivererr.New(pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND,
			"the history of LeaderWorkerSet %s has no revision that served before %s%s", o.Key, o.Stable.Revision, entries(o))
	}
	return newest.Revision, nil
}

// entries lists what the history has, for a message about what it lacks.
func entries(o Observation) string {
	if len(o.History) == 0 {
		return "; it is empty"
	}
	names := make([]string, 0, len(o.History))
	for _, e := range o.History {
		names = append(names, fmt.Sprintf("%d (%s)", e.Number, e.Revision))
	}
	return "; it has " + strings.Join(names, ", ")
}
