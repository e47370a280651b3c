// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
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
	return s.workload == (types.NamespacedName{}) || s.workload == key || s.isAlias != nil && s.isAlias(s.workload, key)
}

// lock is keyLocks.lock for workloads that the driver may write to. The error has an ErrorReason if it may not.
func (s *scope) lock(ctx context.Context, key types.NamespacedName) (unlock func(), err error) {
	switch {
	case s.readOnly:
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED,
			"this driver is read-only and can't change %s: use one that was started without ReadOnly", observe.Object(key))
	case !s.covers(key):
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED,
			"this driver was started for %s only: use one that serves %s too", observe.Object(s.workload), observe.Object(key))
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
	// Waiting callers count, too: a lock that left the map would not exclude the next caller.
	k.users++
	l.mu.Unlock()

	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		k.users--
		if k.users == 0 {
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
