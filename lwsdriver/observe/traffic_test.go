// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// Workloads are found by the objects that carry their requests: by the record's policy, or by the canary's without a record.
func TestCarried(t *testing.T) {
	stable := lwstest.RoutedPhase(t, record.Progressing, nil)
	other := stable.DeepCopy()
	other.Namespace = "other"
	b := newRoutedFixture(t, stable, 0)
	b.cache(other)
	is := func(what string, want ...string) {
		t.Helper()
		var got []string
		for _, key := range b.workloadsRoutedBy("default", traffic.KindHTTPRoute, "llm") {
			got = append(got, key.String())
		}
		slices.Sort(got)
		got = slices.Compact(got)
		assert.True(t, slices.Equal(got, want), "%s: %v, want %v", what, got, want)
	}
	is("record and canary", "default/vllm")
	assert.NotEmpty(t, b.workloadsRoutedBy("default", traffic.KindService, "vllm-canary"), "no workload has the canary Service")
	assert.Empty(t, b.workloadsRoutedBy("default", traffic.KindService, "another"), "a workload has another's Service")
	n := len(b.workloadsRoutedBy("", traffic.KindHTTPRoute, ""))
	assert.GreaterOrEqual(t, n, 2, "%d are signalled when the cache of routes is filled, want all", n)
	b.cache(lwstest.Unrecorded())
	is("canary alone", "default/vllm")
	require.NoError(t, b.Caches.Workloads.GetIndexer().Delete(stable))
	is("orphan", "default/vllm")
	require.NoError(t, b.Caches.Workloads.GetIndexer().Delete(b.canary))
	is("nothing")
}

// Without a record and the finalizer, which other clients removed, the canary still says what to restore.
func TestAddedPolicyWithoutFinalizer(t *testing.T) {
	stable := lwstest.Unrecorded()
	canary := lwstest.RoutedCanary(t, stable)
	canary.Annotations[record.TrafficAnnotation] = `{"stableService": "vllm", "httpRoutes": ["llm"]}`
	canary.Finalizers, canary.DeletionTimestamp = []string{metav1.FinalizerDeleteDependents}, ptr.To(metav1.NewTime(lwstest.Noon))
	s, err := newFixture(t, stable, canary).Observe(lwstest.VLLM)
	require.NoError(t, err)
	assert.True(t, s.Setup != nil && s.Setup.Canary == canary.Name, "traffic %+v, want that of %s", s.Setup, canary.Name)
}

// The policy on a canary counts only without a record.
func TestAddedPolicy(t *testing.T) {
	withDrain := `{"stableService": "vllm", "httpRoutes": ["llm"], "drain": {"period": "7s"}}`
	for _, tc := range []struct {
		name, reason string
		stable       *lws.LeaderWorkerSet
		annotation   string
		want         string // the stable Service; empty: no traffic
		bad          bool
	}{
		{"record", "what the record says holds", lwstest.RoutedPhase(t, record.Progressing, nil), `{"stableService": "another", "httpRoutes": ["x"]}`, "vllm", false},
		{"record without", "a release that routes nothing", lwstest.InPhase(t, record.Progressing), withDrain, "", false},
		{"no record", "it was removed", lwstest.Unrecorded(), withDrain, "vllm", false},
		{"neither", "a canary that was never routed to", lwstest.Unrecorded(), "", "", false},
		{"edited", "what can't be read must not be guessed", lwstest.Unrecorded(), "{", "", true},
		{"unusable", "no driver wrote that", lwstest.Unrecorded(), `{"stableService": "vllm"}`, "", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			canary := lwstest.RoutedCanary(t, tc.stable)
			canary.Annotations[record.TrafficAnnotation] = tc.annotation
			b := newFixture(t, tc.stable, canary)
			s, err := b.Observe(lwstest.VLLM)
			require.Equal(t, tc.bad, err != nil, "%s: %v", tc.reason, err)
			if tc.bad {
				lwstest.ErrorContains(t, err, record.TrafficAnnotation, canary.Name)
				return
			}
			got := ""
			if s.Setup != nil {
				got = s.Setup.Policy.StableService
			}
			assert.True(t, got == tc.want && (s.Traffic != nil) == (tc.want != ""), "%s: Service %q, want %q", tc.reason, got, tc.want)
			assert.False(t, tc.name == "no record" && s.Policy.Drain.Period == 0, "the drain is forgotten")
		})
	}
}

// Two workloads share a route: while the release of one is under way, the other does not give up the fields of both. A copy of a workload has no
// release.
func TestSharedRoutes(t *testing.T) {
	stable, routes := lwstest.RoutedPhase(t, record.CleaningUp, nil), []traffic.Key{{Kind: traffic.KindHTTPRoute, Name: "llm"}}
	other := lwstest.RoutedPhase(t, record.Progressing, nil)
	other.Name, other.UID = "other", "other"
	b := newFixture(t, stable, other)
	got := b.sharedRoutes(lwstest.VLLM, routes)
	assert.True(t, slices.Equal(got, routes), "shared %v", got)
	for _, phase := range []record.Phase{record.Promoted, record.CleaningUp, record.Nothing} {
		ended := lwstest.RoutedPhase(t, phase, nil)
		ended.Name, ended.UID = "other", "other"
		b.cache(ended)
		assert.Empty(t, b.sharedRoutes(lwstest.VLLM, routes), "%s: shared", phase)
	}
	rec := recordOf(other)
	rec.UID = stable.UID
	b.cache(lwstest.WithRecord(t, other, *rec))
	assert.Empty(t, b.sharedRoutes(lwstest.VLLM, routes), "a copy: shared")
}

// The two Services distinguish the groups by revision. A leader's name does not, so the updated ones are listed.
func TestSetupInPlace(t *testing.T) {
	for _, tc := range []struct {
		name, reason   string
		change         func(*record.Release)
		stable, canary string
		updated        []string
	}{
		{"Batch", "", lwstest.Unchanged, "old", "new", []string{"vllm-2", "vllm-3"}},
		{"NoRevisionYet", "No pod may be taken for updated by its label.", func(r *record.Release) { r.UpdateRevision = "" }, "old", unknownRevision, []string{"vllm-2", "vllm-3"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newFixture(t, lwstest.RoutedInPlace(t, tc.change))
			b.showGroups("old", "old", "new", "new")
			got := b.look().Setup
			require.True(t, got != nil && got.InPlace(), "%s setup %+v", tc.reason, got)
			pins := map[string]string{lws.SetNameLabelKey: "vllm", lws.RevisionKey: tc.stable}
			assert.Empty(t, cmp.Diff(pins, got.StablePin), "%s stable (-want +got)", tc.reason)
			pins[lws.RevisionKey], pins[record.ServingLabel] = tc.canary, record.Serving
			assert.Empty(t, cmp.Diff(pins, got.CanaryPin), "%s canary (-want +got)", tc.reason)
			assert.Empty(t, cmp.Diff(tc.updated, got.Updated), "%s updated (-want +got)", tc.reason)
		})
	}
}

// In place nothing is added that could carry the policy, so the driver that saw it knows how to give everything back.
func TestPolicyInPlaceOutlivesRecord(t *testing.T) {
	b := newFixture(t, lwstest.RoutedInPlace(t, lwstest.Unchanged))
	b.showGroups("old", "new")
	require.NotNil(t, b.look().Traffic, "the release routes nothing")
	b.cache(lwstest.Unrecorded())
	s := b.look()
	assert.True(t, s.Setup != nil && s.Setup.Policy.StableService == "vllm" && s.Setup.InPlace(), "the record is removed: setup %+v", s.Setup)
	d := plan.Requests(s.Observation)
	assert.True(t, cmp.Equal(d, traffic.Desired{}), "requests without a record: %+v", d)
	routed := func() []types.NamespacedName { return b.workloadsRoutedBy("default", traffic.KindHTTPRoute, "llm") }
	assert.Contains(t, routed(), lwstest.VLLM, "without a record no change of the route is seen")
	assert.Contains(t, b.workloadsRoutedBy("", traffic.KindHTTPRoute, ""), lwstest.VLLM, "nor that routes can be read")
	kept := b.policyOf(lwstest.VLLM)
	assert.True(t, kept != nil && kept.of == "stable", "kept for a workload that is being deleted: %+v", kept)
	b.cache(lwstest.RoutedInPlace(t, withoutTraffic(t)))
	s = b.look()
	assert.True(t, s.Setup != nil && s.Setup.InPlace(), "the policy is edited out of the record: setup %+v", s.Setup)
	b.cache(lwstest.RoutedInPlace(t, func(r *record.Release) { withoutTraffic(t)(r); r.ID = "r2" }))
	s = b.look()
	assert.Nil(t, s.Setup, "the next release routes nothing: setup %+v", s.Setup)
	b.cache(lwstest.InPhase(t, record.Progressing))
	b.look()
	assert.Nil(t, b.policyOf(lwstest.VLLM), "the policy of an earlier release is kept beside the next")

	assert.NotContains(t, routed(), lwstest.VLLM, "the route of an earlier release")

	another := newFixture(t, lwstest.Unrecorded())
	s = another.look()
	assert.Nil(t, s.Setup, "a driver that never saw it: %+v", s.Setup)
}

// The Service of a workload that was restored from a backup of a release in place selects a revision that no group has. Its record says what to
// restore. Services of the workload that another one is a copy of are not touched.
func TestServiceOfRestoredWorkload(t *testing.T) {
	original := lwstest.RoutedInPlace(t, lwstest.Unchanged)
	setup := lwstest.RoutedSetupInPlace(t, original)
	rec := recordOf(original)
	rec.UID = "original"
	restored := lwstest.WithRecord(t, original, *rec)
	copied := restored.DeepCopy()
	copied.Name, copied.UID = "copy", "copy"
	core, routes := lwstest.RoutedObjects(t, setup, 50, "vllm-1")
	b := newFixtureOn(t, core, routes, restored, copied)
	b.runSynced()
	var write fmt.Stringer
	b.eventually("a write", func() bool {
		write = lwstest.Decide(t, b.look().Observation).Action
		return write != nil
	})
	assert.Equal(t, "patch Service vllm: restore the selector", write.String())
	assert.Contains(t, b.workloadsRoutedBy("default", traffic.KindService, "vllm"), lwstest.VLLM, "no change of the Service is seen")
	s, err := b.Observe(KeyOf(copied))
	require.NoError(t, err)
	assert.Nil(t, s.Traffic, "a copy with another name has the Service of the original")
}

// The bounds of a DisaggregatedSet name what carries its requests, also without its record, or after the set.
func TestCarriedByBounds(t *testing.T) {
	b := newFixture(t)
	object, err := BoundsFor(&Set{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "llm"}}, plan.Bounds{Routes: "r"}, `{"stableService": "llm", "httpRoutes": ["pd"]}`)
	require.NoError(t, err)
	require.NoError(t, b.Disaggregated.bounds.GetIndexer().Add(stripBounds(object)))
	want := []types.NamespacedName{KeyFor(KindSet, "default", "llm")}
	assert.Equal(t, want, b.workloadsRoutedBy("default", traffic.KindHTTPRoute, "pd"))
	assert.Empty(t, b.workloadsRoutedBy("default", traffic.KindHTTPRoute, "llm"))
}

// showGroups shows a leader for each revision, as groups 0, 1 and so on.
func (b *fixture) showGroups(revisions ...string) {
	b.t.Helper()
	for i, revision := range revisions {
		p := lwstest.Pod(fmt.Sprintf("vllm-%d", i))
		p.Labels[lws.GroupIndexLabelKey], p.Labels[lws.RevisionKey] = fmt.Sprint(i), revision
		p.Annotations[lws.SizeAnnotationKey] = "1"
		b.showPod(p)
	}
}

// withoutTraffic edits the traffic out of the policy of a release.
func withoutTraffic(t *testing.T) func(*record.Release) {
	return func(r *record.Release) {
		t.Helper()
		policy, err := r.PolicyMessage()
		require.NoError(t, err)
		policy.Traffic = nil
		r.Policy, err = record.EncodePolicy(policy)
		require.NoError(t, err)
	}
}
