// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// scope is what a driver may write to. Every RPC and worker takes the workload's lock before it writes, so the lock enforces it.
type scope struct {
	keyLocks

	readOnly bool
	// workload is the only one in scope. Zero means all.
	workload types.NamespacedName
	// isAlias is observe.Caches.IsAlias. Nil in tests: there are none.
	isAlias func(name, workload types.NamespacedName) bool
}

// covers reports whether the workload is in scope.
func (s *scope) covers(key types.NamespacedName) bool {
	return s.workload == types.NamespacedName{} || s.workload == key || s.isAlias != nil && s.isAlias(s.workload, key)
}

// lock is keyLocks.lock for workloads that the driver may write to. The error has an ErrorReason if it may not.
func (s *scope) lock(ctx context.Context, key types.NamespacedName) (unlock func(), err error) {
	switch {
	case s.readOnly:
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED,
			"this driver is read-only and can't change %s: use one that was started without ReadOnly", key)
	case !s.covers(key):
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED,
			"this driver was started for LeaderWorkerSet %s only: use one that serves %s too", s.workload, key)
	}
	return s.keyLocks.lock(ctx, key)
}

// keyLocks is a mutex per workload that honours the context.
type keyLocks struct {
	mu    sync.Mutex
	locks map[types.NamespacedName]*keyLock
}

type keyLock struct {
	held  chan struct{} // holds one token while locked
	users int
}

// lock returns the function that unlocks, or the context's error.
func (l *keyLocks) lock(ctx context.Context, key types.NamespacedName) (unlock func(), err error) {
	l.mu.Lock()
	if l.locks == nil {
		l.locks = map[types.NamespacedName]*keyLock{}
	}
	k := l.locks[key]
	if k == nil {
		k = &keyLock{held: make(chan struct{}, 1)}
		l.locks[key] = k
	}
	// Those who wait count, too: a lock that left the map would not exclude the next caller.
	k.users++
	l.mu.Unlock()

	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(l.locks, key)
		}
	}
	select {
	case k.held <- struct{}{}:
		return func() { <-k.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, fmt.Errorf("wait for other work on %s: %w", key, context.Cause(ctx))
	}
}

// perWorkload holds a value for each workload, in memory only: a driver that restarts begins anew. The zero value is ready to use.
type perWorkload[V comparable] struct {
	mu  sync.Mutex
	all map[types.NamespacedName]V
}

// get returns a workload's value. Without one it is the zero value.
func (p *perWorkload[V]) get(key types.NamespacedName) V {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all[key]
}

// set replaces a workload's value, and returns what it was.
func (p *perWorkload[V]) set(key types.NamespacedName, now V) (before V) {
	p.update(key, func(was V) V {
		before = was
		return now
	})
	return before
}

// update replaces a workload's value by that of change, which must not block.
func (p *perWorkload[V]) update(key types.NamespacedName, change func(before V) V) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var none V
	switch now := change(p.all[key]); {
	case now == none:
		delete(p.all, key)
	case p.all == nil:
		p.all = map[types.NamespacedName]V{key: now}
	default:
		p.all[key] = now
	}
}

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
		// Any other result, success included, starts the count again.
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
