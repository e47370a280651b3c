// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Filled caches are not enough: whether they can be kept is asked first.
func TestNotReadyBeforeFirstProbe(t *testing.T) {
	b := newBed(t, lwstest.Unrecorded())
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	running.Go(func() { b.Observer.Run(ctx) })
	b.eventually("the caches are filled", b.Observer.Caches.Synced)
	if got := drivererr.Reason(b.Ready()); b.Synced() || got != pb.ErrorReason_ERROR_REASON_NOT_SYNCED {
		t.Errorf("synced %t, %s; want NOT_SYNCED", b.Synced(), got)
	}
	b.startup.set(nil)
	if !b.Synced() {
		t.Errorf("asked, and not synced: %v", b.Ready())
	}
}

// Once the caches are filled, a failed probe does not keep calls from being served.
func TestFailedProbeKeepsReady(t *testing.T) {
	b := newBed(t, lwstest.Unrecorded())
	b.Core.PrependReactor("create", "selfsubjectaccessreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("no such API")
	})
	b.run()
	b.eventually("the driver serves", b.Synced)
}
