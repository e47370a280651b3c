// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// A driver that may not watch is not healthy, at no moment, until it may. It would list once and look alive.
func TestSyncedRequiresWatchAccess(t *testing.T) {
	t.Parallel()
	b := newFixture(t, lwstest.Unrecorded())
	var allowed, asked atomic.Bool
	lwstest.ForbidWatches(b.Core, func() bool { asked.Store(true); return !allowed.Load() })
	assert.False(t, b.Synced(), "synced before it runs")
	b.run()
	b.eventually("the caches are filled", func() bool {
		require.False(t, b.Synced(), "synced although it may not watch")
		return asked.Load()
	})
	b.eventually("the driver says what it lacks", func() bool {
		return drivererr.Reason(b.engine.Ready()) == pb.ErrorReason_ERROR_REASON_FORBIDDEN
	})
	assert.False(t, b.Synced(), "synced although it may not watch")
	allowed.Store(true)
	b.eventually("it may watch now", b.Synced)
	assert.NoError(t, b.engine.Ready(), "synced, and does not serve")
}

// A release of a held workload waits for LWS to record its template, so that one write begins it.
func TestAwaitRevision(t *testing.T) {
	held, loose := lwstest.WithRecord(t, lwstest.StableWorkload(), record.Record{Saved: lwstest.Rolling(0, "1", "0")}), lwstest.Unrecorded()
	loose.Name, loose.Spec.RolloutStrategy.RollingUpdateConfiguration = "loose", ptr.To(lwstest.Rolling(0, "1", "0"))
	b := newFixture(t, held, loose)
	b.runSynced()
	took := func(key types.NamespacedName) time.Duration {
		begun := time.Now()
		b.awaitRevision(t.Context(), key)
		return time.Since(begun)
	}
	assert.Less(t, took(observe.KeyOf(loose)), raceTimeout, "a workload that would roll was waited for, for")
	d := took(lwstest.VLLM)
	assert.GreaterOrEqual(t, d, raceTimeout, "the revision was waited for for %s only", d)
	require.NoError(t, b.Core.Tracker().Add(lwstest.Revision(t, held, "new")))
	d, got := took(lwstest.VLLM), b.look().Stable.Revision
	assert.False(t, d < raceTimeout && got != "new", "revision %q after %s", got, d)
}
