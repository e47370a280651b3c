// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
		if got = slices.Compact(got); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	is("record and canary", "default/vllm")
	if n := len(b.workloadsRoutedBy("default", traffic.KindService, "vllm-canary")); n == 0 {
		t.Error("no workload has the canary Service")
	}
	if n := len(b.workloadsRoutedBy("default", traffic.KindService, "another")); n > 0 {
		t.Error("a workload has another's Service")
	}
	if n := len(b.workloadsRoutedBy("", traffic.KindHTTPRoute, "")); n < 2 {
		t.Errorf("%d are signalled when the cache of routes is filled, want all", n)
	}
	b.cache(lwstest.Unrecorded())
	is("canary alone", "default/vllm")
	if err := b.Caches.Workloads.GetIndexer().Delete(stable); err != nil {
		t.Fatal(err)
	}
	is("orphan", "default/vllm")
	if err := b.Caches.Workloads.GetIndexer().Delete(b.canary); err != nil {
		t.Fatal(err)
	}
	is("nothing")
}

// Without a record and the finalizer, which other clients removed, the canary still says what to restore.
func TestAddedPolicyWithoutFinalizer(t *testing.T) {
	stable := lwstest.Unrecorded()
	canary := lwstest.RoutedCanary(t, stable)
	canary.Annotations[record.TrafficAnnotation] = `{"stableService": "vllm", "httpRoutes": ["llm"]}`
	canary.Finalizers, canary.DeletionTimestamp = []string{metav1.FinalizerDeleteDependents}, ptr.To(metav1.NewTime(lwstest.Noon))
	s, err := newFixture(t, stable, canary).Observe(lwstest.VLLM)
	if err != nil {
		t.Fatal(err)
	}
	if s.Setup == nil || s.Setup.Canary != canary.Name {
		t.Errorf("traffic %+v, want that of %s", s.Setup, canary.Name)
	}
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
			if (err != nil) != tc.bad {
				t.Fatalf("%s: %v", tc.reason, err)
			}
			if tc.bad {
				lwstest.ErrorContains(t, err, record.TrafficAnnotation, canary.Name)
				return
			}
			got := ""
			if s.Setup != nil {
				got = s.Setup.Policy.StableService
			}
			if got != tc.want || (s.Traffic != nil) != (tc.want != "") {
				t.Errorf("%s: Service %q, want %q", tc.reason, got, tc.want)
			}
			if tc.name == "no record" && s.Policy.Drain.Period == 0 {
				t.Error("the drain is forgotten")
			}
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
	if got := b.sharedRoutes(lwstest.VLLM, routes); !slices.Equal(got, routes) {
		t.Errorf("shared %v", got)
	}
	for _, phase := range []record.Phase{record.Promoted, record.CleaningUp, record.Nothing} {
		ended := lwstest.RoutedPhase(t, phase, nil)
		ended.Name, ended.UID = "other", "other"
		b.cache(ended)
		if got := b.sharedRoutes(lwstest.VLLM, routes); len(got) > 0 {
			t.Errorf("%s: shared %v", phase, got)
		}
	}
	rec := recordOf(other)
	rec.UID = stable.UID
	b.cache(lwstest.WithRecord(t, other, *rec))
	if got := b.sharedRoutes(lwstest.VLLM, routes); len(got) > 0 {
		t.Errorf("a copy: shared %v", got)
	}
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
			if got == nil || !got.InPlace() {
				t.Fatalf("%s setup %+v", tc.reason, got)
			}
			pins := map[string]string{lws.SetNameLabelKey: "vllm", lws.RevisionKey: tc.stable}
			if diff := cmp.Diff(pins, got.StablePin); diff != "" {
				t.Errorf("%s stable (-want +got):\n%s", tc.reason, diff)
			}
			pins[lws.RevisionKey], pins[record.ServingLabel] = tc.canary, record.Serving
			if diff := cmp.Diff(pins, got.CanaryPin); diff != "" {
				t.Errorf("%s canary (-want +got):\n%s", tc.reason, diff)
			}
			if diff := cmp.Diff(tc.updated, got.Updated); diff != "" {
				t.Errorf("%s updated (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// In place nothing is added that could carry the policy, so the driver that saw it knows how to give everything back.
func TestPolicyInPlaceOutlivesRecord(t *testing.T) {
	b := newFixture(t, lwstest.RoutedInPlace(t, lwstest.Unchanged))
	b.showGroups("old", "new")
	if s := b.look(); s.Traffic == nil {
		t.Fatal("the release routes nothing")
	}
	b.cache(lwstest.Unrecorded())
	s := b.look()
	if s.Setup == nil || s.Setup.Policy.StableService != "vllm" || !s.Setup.InPlace() {
		t.Errorf("the record is removed: setup %+v", s.Setup)
	}
	if d := plan.Requests(s.Observation); !cmp.Equal(d, traffic.Desired{}) {
		t.Errorf("requests without a record: %+v", d)
	}
	if kept := b.policyOf(lwstest.VLLM); kept == nil || kept.of != "stable" {
		t.Errorf("kept for a workload that is being deleted: %+v", kept)
	}
	b.cache(lwstest.RoutedInPlace(t, withoutTraffic(t)))
	if s := b.look(); s.Setup == nil || !s.Setup.InPlace() {
		t.Errorf("the policy is edited out of the record: setup %+v", s.Setup)
	}
	b.cache(lwstest.RoutedInPlace(t, func(r *record.Release) { withoutTraffic(t)(r); r.ID = "r2" }))
	if s := b.look(); s.Setup != nil {
		t.Errorf("the next release routes nothing: setup %+v", s.Setup)
	}
	b.cache(lwstest.InPhase(t, record.Progressing))
	if b.look(); b.policyOf(lwstest.VLLM) != nil {
		t.Error("the policy of an earlier release is kept beside the next")
	}

	another := newFixture(t, lwstest.Unrecorded())
	if s := another.look(); s.Setup != nil {
		t.Errorf("a driver that never saw it: %+v", s.Setup)
	}
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
		if err != nil {
			t.Fatal(err)
		}
		policy.Traffic = nil
		if r.Policy, err = record.EncodePolicy(policy); err != nil {
			t.Fatal(err)
		}
	}
}
