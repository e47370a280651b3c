// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// memory is what the engine remembers of a workload. It is not persisted: a driver that restarts begins anew.
type memory struct {
	// err blocks the workload's release.
	err error
	// refused is true if err is the response to a write, and no retry would succeed.
	refused bool
	// refusedOf is the object of the refused write, if it routes requests.
	refusedOf traffic.Key
	// conflicts is how many writes in a row have lost a race, including the last one.
	conflicts int
	// waiting is what the last decision waits for.
	waiting plan.Waiting
	// look is what Look returned last.
	look *look
	// history is why the history is not written.
	history historyPause
	// event is what the last event was about, unsafe the template of the last event about an unsafe one.
	event  lastEvent
	unsafe unsafeTemplate
}

// memories are those of all workloads. The zero value is ready to use.
type memories struct {
	mu sync.Mutex
	of map[types.NamespacedName]memory
}

// get returns what is remembered of a workload.
func (m *memories) get(key types.NamespacedName) memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.of[key]
}

// update changes what is remembered of a workload. change must not block.
func (m *memories) update(key types.NamespacedName, change func(*memory)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.of[key]
	change(&now)
	switch {
	case now == memory{}:
		delete(m.of, key)
	case m.of == nil:
		m.of = map[types.NamespacedName]memory{key: now}
	default:
		m.of[key] = now
	}
}

// conflictReportThreshold is how many conflicts in a row are reported: then every write conflicts.
const conflictReportThreshold = 5

// setError remembers the result of a pass, which may be nil.
func (m *memory) setError(err error, refused bool) {
	m.err, m.refused, m.refusedOf = err, refused, traffic.Key{}
	// Any other result, success included, starts the count again.
	if IsConflict(err) {
		m.conflicts++
	} else {
		m.conflicts = 0
	}
}

// refusal returns why the last write was refused for good, nil if it was not.
func (m memory) refusal() *drivererr.Problem {
	if !m.refused {
		return nil
	}
	return drivererr.ProblemOf(m.err)
}

// blockingError returns the error to report, which a lost race is not: another pass follows.
func (m memory) blockingError() error {
	if m.conflicts > 0 && m.conflicts < conflictReportThreshold {
		return nil
	}
	return m.err
}

// IsConflict reports whether a write lost a race, so that it may succeed after another observation.
func IsConflict(err error) bool {
	return drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_CONFLICT && !errors.Is(err, context.Canceled)
}
