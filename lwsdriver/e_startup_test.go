// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// A driver that may not watch is not healthy, at no moment, until it may. It would list once and look alive.
func TestSyncedIsHonest(t *testing.T) {
	t.Parallel()
	b := newBed(t, lwstest.Unrecorded())
	var allowed, asked atomic.Bool
	lwstest.AnswerReviews(b.Core, func() bool { asked.Store(true); return allowed.Load() })
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

// Filled caches are not enough: whether they can be kept is asked first.
func TestNobodyIsServedBeforeTheDriverAsked(t *testing.T) {
	b := newBed(t, lwstest.Unrecorded())
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, informer := range []cache.SharedIndexInformer{b.engine.Observer.Caches.Workloads, b.engine.Observer.Caches.Pods, b.engine.Observer.Caches.Revisions} {
		running.Go(func() { informer.RunWithContext(ctx) })
	}
	b.eventually("the caches are filled", b.engine.Observer.Caches.Synced)
	if got := drivererr.Reason(b.engine.Ready()); b.Synced() || got != pb.ErrorReason_ERROR_REASON_NOT_SYNCED {
		t.Errorf("synced %t, %s; want NOT_SYNCED", b.Synced(), got)
	}
	b.engine.startup.set(nil)
	if !b.Synced() {
		t.Errorf("asked, and not synced: %v", b.engine.Ready())
	}
}

// Once the caches are filled, a question that can't be asked keeps nobody from being served.
func TestUnanswerableQuestionIsNoReason(t *testing.T) {
	b := newBed(t, lwstest.Unrecorded())
	b.Core.PrependReactor("create", "selfsubjectaccessreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("no such API")
	})
	b.run()
	b.eventually("the driver serves", b.Synced)
}
