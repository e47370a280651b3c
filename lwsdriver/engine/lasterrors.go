// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// lastErrors hold, per workload, the error that blocks its release.
type lastErrors struct{ of perWorkload[lastError] }

type lastError struct {
	err error
	// refused: it is the response to a write, and no retry would succeed.
	refused   bool
	conflicts int // in a row, including this one
}

// conflictReportThreshold is how many conflicts in a row are reported: then every write conflicts.
const conflictReportThreshold = 5

// set replaces the error, which may be nil.
func (l *lastErrors) set(key types.NamespacedName, err error) { l.put(key, lastError{err: err}) }

// refuse is set for a refusal that no retry would change.
func (l *lastErrors) refuse(key types.NamespacedName, err error) {
	l.put(key, lastError{err: err, refused: true})
}

func (l *lastErrors) put(key types.NamespacedName, now lastError) {
	l.of.update(key, func(before lastError) lastError {
		if IsConflict(now.err) {
			now.conflicts = before.conflicts + 1
		}
		return now
	})
}

// refused returns why the last write was refused for good, nil if it was not.
func (l *lastErrors) refused(key types.NamespacedName) *drivererr.Problem {
	if now := l.of.get(key); now.refused {
		return drivererr.ProblemOf(now.err)
	}
	return nil
}

// get returns the error to report, which a lost race is not: another pass follows.
func (l *lastErrors) get(key types.NamespacedName) error {
	now := l.of.get(key)
	if now.conflicts > 0 && now.conflicts < conflictReportThreshold {
		return nil
	}
	return now.err
}

// IsConflict reports whether a write lost a race, so that it may succeed after another observation.
func IsConflict(err error) bool {
	return drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_CONFLICT && !errors.Is(err, context.Canceled)
}
