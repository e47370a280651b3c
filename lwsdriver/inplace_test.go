// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// routedInPlace is stableWorkload with a release that replaces its groups and routes their requests.
func routedInPlace(t *testing.T, change func(*record.Release)) *lws.LeaderWorkerSet {
	t.Helper()
	policy, err := record.EncodePolicy(&pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: []string{"50%", "100%"}, Traffic: routedPolicy})
	if err != nil {
		t.Fatal(err)
	}
	r := &record.Release{
		ID: "r1", Policy: policy, StableRevision: "old", UpdateRevision: "new", Phase: record.Progressing, StartedAt: noon, PhaseAt: noon,
	}
	change(r)
	return withRecord(t, stableWorkload(), record.Record{Saved: record.Native(record.Hold()), Release: r})
}

func unchanged(*record.Release) {}

// showGroups shows a leader for each revision, as groups 0, 1 and so on.
func (b *bed) showGroups(revisions ...string) {
	b.t.Helper()
	for i, revision := range revisions {
		p := testPod(fmt.Sprintf("vllm-%d", i))
		p.Labels[lws.GroupIndexLabelKey], p.Labels[lws.RevisionKey] = fmt.Sprint(i), revision
		p.Annotations[lws.SizeAnnotationKey] = "1"
		b.showPod(p)
	}
}

// The two Services tell the groups apart by revision; a leader's name does not, so those that are updated are named.
func TestSetupInPlace(t *testing.T) {
	for _, tc := range []struct {
		name, reason   string
		change         func(*record.Release)
		stable, canary string
		updated        []string
	}{
		{"Batch", "", unchanged, "old", "new", []string{"vllm-2", "vllm-3"}},
		{"NoRevisionYet", "No pod may be taken for updated by its label.", func(r *record.Release) { r.UpdateRevision = "" }, "old", unknownRevision, []string{"vllm-2", "vllm-3"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBed(t, routedInPlace(t, tc.change))
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
	b := newBed(t, routedInPlace(t, unchanged))
	b.showGroups("old", "new")
	if s := b.look(); s.Traffic == nil {
		t.Fatal("the release routes nothing")
	}
	b.cache(unrecorded())
	s := b.look()
	if s.Setup == nil || s.Setup.Policy.StableService != "vllm" || !s.Setup.InPlace() {
		t.Errorf("the record is removed: setup %+v", s.Setup)
	}
	if d := plan.Requests(s.Observation); !cmp.Equal(d, traffic.Desired{}) {
		t.Errorf("requests without a record: %+v", d)
	}
	if kept := b.engine.Observer.policyOf(vllm); kept == nil || kept.of != "stable" {
		t.Errorf("kept for a workload that goes: %+v", kept)
	}
	b.cache(inPhase(t, record.Progressing))
	if b.look(); b.engine.Observer.policyOf(vllm) != nil {
		t.Error("the policy of an earlier release is kept beside the next")
	}

	another := newBed(t, unrecorded())
	if s := another.look(); s.Setup != nil {
		t.Errorf("a driver that never saw it: %+v", s.Setup)
	}
}

// The workload is gone, and its release had added none: the driver that saw it gives back what it had borrowed.
func TestOrphansGiveBackInPlace(t *testing.T) {
	stable := routedInPlace(t, unchanged)
	policy, bad := traffic.ParsePolicy(routedPolicy)
	if len(bad) > 0 {
		t.Fatal(bad)
	}
	core, routes := routedObjects(t, newSetupInPlace(stable, [2]string{"old", "new"}, policy, nil), 30, "vllm-1")
	b := &routedBed{bed: newBedOn(t, core, routes, stable), routes: routes}
	b.mirrorServices()
	b.look()
	if err := b.sets.Tracker().Delete(lws.GroupVersion.WithResource("leaderworkersets"), "default", "vllm"); err != nil {
		t.Fatal(err)
	}
	if err := b.engine.Observer.Caches.Workloads.GetIndexer().Delete(stable); err != nil {
		t.Fatal(err)
	}
	// What its deletion does: what is needed to give back is not forgotten before.
	b.engine.Observer.deleted(vllm)
	b.run()
	b.engine.queue.Add(vllm)
	b.mustGiveBack()
	b.eventually("the policy is forgotten", func() bool { return b.engine.Observer.policyOf(vllm) == nil })
}

// A driver that only looks gives nothing back, and keeps nothing of it.
func TestPolicyInPlaceIsForgotten(t *testing.T) {
	b := newBed(t, routedInPlace(t, unchanged))
	b.engine.locks.readOnly = true
	if b.look(); b.engine.Observer.policyOf(vllm) == nil {
		t.Fatal("the policy is not kept")
	}
	if b.engine.Observer.deleted(vllm); b.engine.Observer.policyOf(vllm) != nil {
		t.Error("the policy of a workload that is gone is kept for ever")
	}
}
