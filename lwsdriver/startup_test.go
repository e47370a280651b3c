// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"sync/atomic"
	"testing"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// A driver that may not watch is not healthy, at no moment, until it may. It would list once and look alive.
func TestSyncedRequiresWatchAccess(t *testing.T) {
	t.Parallel()
	b := newBed(t, lwstest.Unrecorded())
	var allowed, asked atomic.Bool
	lwstest.AnswerAccessReviews(b.Core, func() bool { asked.Store(true); return allowed.Load() })
	if b.Synced() {
		t.Error("synced before it runs")
	}
	b.run()
	b.eventually("the caches are filled", func() bool {
		if b.Synced() {
			t.Fatal("synced although it may not watch")
		}
		return b.engine.Observer.Caches.Synced() && asked.Load()
	})
	b.eventually("the driver says what it lacks", func() bool {
		return drivererr.Reason(b.engine.Ready()) == pb.ErrorReason_ERROR_REASON_FORBIDDEN
	})
	if b.Synced() {
		t.Error("synced although it may not watch")
	}
	allowed.Store(true)
	b.eventually("it may watch now", b.Synced)
	if err := b.engine.Ready(); err != nil {
		t.Errorf("synced, and does not serve: %v", err)
	}
}
