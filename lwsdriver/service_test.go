// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/internal/access"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// A wait ends before the call's own deadline, so that its caller gets the context and no DEADLINE_EXCEEDED.
func TestAwaitReturnsBeforeDeadline(t *testing.T) {
	const never = 0
	for _, tt := range []struct {
		name                 string
		wait, deadline, want time.Duration
	}{
		{"no deadline", time.Minute, never, time.Minute},
		{"deadline later", time.Minute, 2 * time.Minute, time.Minute},
		{"deadline first", time.Minute, 10 * time.Second, 10*time.Second - answerTime},
		{"deadline just after", 10 * time.Second, 10*time.Second + answerTime/2, 10*time.Second - answerTime/2},
		{"no time at all", time.Minute, answerTime / 2, 0},
		{"no wait", 0, time.Minute, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				// LWS has recorded no revision of the template, so the state never settles.
				b := newFixture(t, lwstest.InPhase(t, record.Progressing))
				defer b.end()
				ctx := t.Context()
				if tt.deadline != never {
					limited, cancel := context.WithTimeout(ctx, tt.deadline)
					defer cancel()
					ctx = limited
				}
				start := time.Now()
				c, err := b.await(ctx, lwstest.VLLM, mutation{}, durationpb.New(tt.wait), false)
				assert.True(t, err == nil && c.GetState() == pb.State_STATE_PREPARING, "answer %v, %v", c, err)
				assert.Equal(t, tt.want, time.Since(start), "answered after")
			})
		})
	}
}

// A call waits without its groups, and answers without them if it gets no turn for a large answer.
func TestAwaitAddsGroupsInTurn(t *testing.T) {
	for _, may := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b := newFixture(t, lwstest.InPhase(t, record.Progressing))
			defer b.end()
			start := time.Now()
			ctx := access.WithTurn(t.Context(), func(context.Context) bool {
				assert.Equal(t, time.Minute, time.Since(start), "the turn is taken after %s, want the end of the wait", time.Since(start))
				return may
			})
			want, left := 4, 0
			if !may {
				want, left = left, want
			}
			c, err := b.await(ctx, lwstest.VLLM, mutation{}, durationpb.New(time.Minute), true)
			assert.True(t, err == nil && len(c.GetGroups()) == want && int(c.GetGroupsOmitted()) == left,
				"turn %t: %d groups, %d omitted, want %d and %d: %v", may, len(c.GetGroups()), c.GetGroupsOmitted(), want, left, err)
		})
	}
}

// A user who asks for many workloads that don't exist delays no user else's request for one.
func TestCallersTakeTurnsAtTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var requests atomic.Int64
		api := roundTripper(func(r *http.Request) (*http.Response, error) {
			requests.Add(1)
			return &http.Response{StatusCode: http.StatusNotFound, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
		})
		d, err := New(&rest.Config{Host: "https://api", Transport: api}, Options{})
		require.NoError(t, err)
		as := func(name string) context.Context { return access.WithUser(t.Context(), &user.DefaultInfo{Name: name}) }
		get := func(name string) {
			_, err := d.observeNew(as(name), types.NamespacedName{Namespace: name, Name: "missing"})
			assert.Equal(t, pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND, drivererr.Reason(err), "%v", err)
		}
		var loud sync.WaitGroup
		for range 300 {
			loud.Go(func() { get("loud") })
			loud.Go(func() {
				_, _ = d.core.CoreV1().PersistentVolumeClaims("loud").Get(as("loud"), "x", metav1.GetOptions{})
			})
		}
		synctest.Wait()
		began, before := time.Now(), requests.Load()
		get("quiet")
		assert.Zero(t, time.Since(began), "another user waited")
		_, err = d.free.read(as("loud"), d.core)
		assert.True(t, err != nil && time.Since(began) == 0, "the list of nodes for all callers waited for one: %v", err)
		assert.True(t, before > 0 && before < 600, "%d requests of one user at once", before)
		loud.Wait()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		assert.NoError(t, d.Run(ended), "Run")
	})
}

// A call decides once about its intent and once about what follows, and answers with that.
func TestCallDecidesTwice(t *testing.T) {
	w := lwstest.WithRecord(t, lwstest.StableWorkload(), record.Record{Saved: lwstest.Rolling(0, "1", "0")})
	w.Spec.RolloutStrategy.RollingUpdateConfiguration = ptr.To(record.Hold())
	var intents []plan.Intent
	o := Options{Decided: func(_ plan.Observation, i plan.Intent, _ plan.Decision, _ error) { intents = append(intents, i) }}
	b := newFixtureWith(t, o, fake.NewClientset(), lwstest.NoRoutes(), w)
	defer b.end()
	m, err := b.mutate(t.Context(), lwstest.VLLM, plan.Adopt{})
	require.NoError(t, err)
	c, err := b.await(t.Context(), lwstest.VLLM, m, nil, false)
	assert.True(t, err == nil && c.GetState() == pb.State_STATE_HOLDING, "answer %v, %v", c, err)
	want := []plan.Intent{plan.Adopt{}, nil}
	assert.True(t, slices.Equal(intents, want), "decisions about %v, want %v", intents, want)
}

// Groups without numbers know no partition, so there is no hold.
func TestUnnumberedGroupsAreRefused(t *testing.T) {
	b := newFixture(t, lwstest.Unrecorded())
	b.run()
	b.eventually("the driver serves", b.Synced)
	pod := lwstest.Pod("vllm-x7f", func(p *corev1.Pod) { p.Labels[lws.GroupIndexLabelKey] = "x7f" })
	_, err := b.Core.CoreV1().Pods(lwstest.VLLM.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	b.eventually("the pod is seen", func() bool { return len(b.look().Stable.Groups) > 0 && b.look().Identity.UnnumberedGroup != "" })
	ref := &pb.WorkloadRef{Namespace: lwstest.VLLM.Namespace, Name: lwstest.VLLM.Name}
	_, errAdopt := b.Adopt(t.Context(), &pb.AdoptRequest{Workload: ref})
	_, errInitialize := b.Initialize(t.Context(), &pb.InitializeRequest{
		Workload: ref, ReleaseId: "r1", Policy: &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"100%"}},
	})
	for _, err := range []error{errAdopt, errInitialize} {
		assert.Equal(t, pb.ErrorReason_ERROR_REASON_UNSUPPORTED_GROUP_IDENTITY, drivererr.Reason(err), "%v, want UNSUPPORTED_GROUP_IDENTITY", err)
		lwstest.ErrorContains(t, err, "x7f", "groupIdentity")
	}
	assert.Empty(t, b.Writes(), "writes")
}

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

// An autoscaler that is not held has removed stable groups: a host still reads the state, and can end the release.
func TestClientReadsReleaseOfShrunkWorkload(t *testing.T) {
	stable := lwstest.InPhase(t, record.Progressing)
	r, err := record.DecodeRecord(stable.Annotations[record.RecordAnnotation])
	require.NoError(t, err)
	r.Release.Replicas = 4
	stable = lwstest.WithRecord(t, stable, *r)
	canary := lwstest.Canary(t, stable)
	canary.Spec.Replicas = ptr.To[int32](2)
	target, err := (&record.Target{Groups: "50%", At: lwstest.Noon}).Encode()
	require.NoError(t, err)
	canary.Annotations[record.TargetAnnotation] = target
	stable.Spec.Replicas = ptr.To[int32](1)
	stable.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: "kube-controller-manager", Subresource: "scale", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:spec":{"f:replicas":{}}}`)},
	}}
	b := newFixtureWith(t, Options{Version: "test"}, fake.NewClientset(), lwstest.NoRoutes(), stable, canary)
	b.run()
	b.eventually("the driver serves", b.Synced)
	client := plugintest.Connect(t, b.Driver, b.Driver)
	c, err := client.Call(t.Context(), &pb.CalculateBatchContextRequest{Workload: &pb.WorkloadRef{Namespace: "default", Name: "vllm"}})
	assert.True(t, err == nil && c.GetReplicas() == 1 && c.GetPlanned() == 2, "%d groups planned of %d: %v", c.GetPlanned(), c.GetReplicas(), err)
}
