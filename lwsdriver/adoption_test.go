// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"encoding/json"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// adoptedIn is what the driver added to default/vllm, once it is a workload of its own.
func adoptedIn(t *testing.T, change ...func(*lws.LeaderWorkerSet, *record.Record)) *lws.LeaderWorkerSet {
	t.Helper()
	w := inPhase(t, record.Promoted)
	w.Name, w.UID = "vllm-new", "successor"
	rec, err := record.DecodeRecord(w.Annotations[record.RecordAnnotation])
	if err != nil {
		t.Fatal(err)
	}
	rec.UID, rec.Workload = w.UID, "vllm"
	w.Labels = map[string]string{record.WorkloadLabel: "vllm"}
	for _, f := range change {
		f(w, rec)
	}
	return withRecord(t, w, *rec)
}

// A name means the object of that name, or else the one that was adopted in its place, as label and record say.
func TestNamed(t *testing.T) {
	other := types.NamespacedName{Namespace: vllm.Namespace, Name: "vllm-new"}
	for _, tt := range []struct {
		name, reason string
		objects      []*lws.LeaderWorkerSet
		want         types.NamespacedName
	}{
		{"nobody", "there is none", nil, vllm},
		{"itself", "an object of that name comes first", []*lws.LeaderWorkerSet{inPhase(t, record.Promoted), adoptedIn(t)}, vllm},
		{"adopted", "it goes by the old name", []*lws.LeaderWorkerSet{adoptedIn(t)}, other},
		{"adopted twice", "and so it does the second time", []*lws.LeaderWorkerSet{
			adoptedIn(t, func(_ *lws.LeaderWorkerSet, r *record.Record) { r.Succeeds = "vllm-old" }),
		}, other},
		{"one after the other", "the first has not gone yet", []*lws.LeaderWorkerSet{
			adoptedIn(t, func(w *lws.LeaderWorkerSet, r *record.Record) { w.Name, w.UID, r.UID = "vllm-newer", "newer", "newer" }),
			adoptedIn(t, func(_ *lws.LeaderWorkerSet, r *record.Record) {
				r.Release.Phase, r.Release.Successor = record.Adopting, "vllm-newer"
			}),
		}, other},
		{"two", "nobody knows which is meant", []*lws.LeaderWorkerSet{
			adoptedIn(t), adoptedIn(t, func(w *lws.LeaderWorkerSet, r *record.Record) { w.Name, w.UID, r.UID = "vllm-newer", "newer", "newer" }),
		}, vllm},
		{"copied", "the record is another object's", []*lws.LeaderWorkerSet{
			adoptedIn(t, func(w *lws.LeaderWorkerSet, _ *record.Record) { w.UID = "copy" }),
		}, vllm},
		{"label alone", "labels are copied", []*lws.LeaderWorkerSet{
			adoptedIn(t, func(_ *lws.LeaderWorkerSet, r *record.Record) { r.Workload = "" }),
		}, vllm},
		{"record alone", "who takes the label off gives the name up", []*lws.LeaderWorkerSet{
			adoptedIn(t, func(w *lws.LeaderWorkerSet, _ *record.Record) { w.Labels = nil }),
		}, vllm},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t, tt.objects...)
			if got := b.engine.Observer.Caches.Named(vllm); got != tt.want {
				t.Errorf("%s: default/vllm means %s, not %s", tt.reason, got, tt.want)
			}
			if got := b.engine.Observer.Caches.Named(other); got != other {
				t.Errorf("its own name means %s", got)
			}
		})
	}
	b := newBed(t, adoptedIn(t, func(_ *lws.LeaderWorkerSet, r *record.Record) { r.Succeeds = "vllm-old" }))
	before := types.NamespacedName{Namespace: vllm.Namespace, Name: "vllm-old"}
	if got := b.engine.Observer.Caches.Named(before); got != other {
		t.Errorf("the name of the object before means %s", got)
	}
	if b.engine.locks.workload = before; !b.engine.locks.covers(other) {
		t.Error("a driver of the object before does not work on its successor")
	}
	b.engine.locks.workload = vllm
	if !b.engine.locks.covers(other) || b.engine.locks.covers(types.NamespacedName{Namespace: vllm.Namespace, Name: "another"}) {
		t.Error("a driver of default/vllm does not work on what goes by that name, or on others")
	}
}

// What a release adds to an adopted workload is found as ever, and what only looks like it is not.
func TestAddedToSuccessor(t *testing.T) {
	w := adoptedIn(t)
	s := &Snapshot{Observation: plan.Observation{Key: KeyOf(w)}, StableObject: w}
	s.Record, _ = record.DecodeRecord(w.Annotations[record.RecordAnnotation])
	c, err := newCanary(s, plan.CreateCanary{Name: s.CanaryName("newer"), Revision: "newer", Replicas: 1})
	if err != nil {
		t.Fatal(err)
	}
	if stable, added := AddedTo(c); c.Name != "vllm-newer" || !added || stable != w.Name || len(otherNames(c)) > 0 {
		t.Errorf("%s is added to %q (%t)", c.Name, stable, added)
	}
	if c.Name = "copy"; len(otherNames(c)) > 0 {
		t.Error("a copy takes the name")
	}
	if _, added := AddedTo(c); added {
		t.Error("a copy is taken for an added one")
	}
}

// Labels that somebody takes off the second set do not make it a workload of its own: the user's would be deleted for it.
func TestSucceeded(t *testing.T) {
	stable := inPhase(t, record.Promoting)
	rec, err := record.DecodeRecord(stable.Annotations[record.RecordAnnotation])
	if err != nil {
		t.Fatal(err)
	}
	green := canaryOf(t, stable)
	rec.Release.Phase, rec.Release.Successor, rec.Release.Groups = record.Adopting, green.Name, 4
	stable = withRecord(t, stable, *rec)
	for _, tt := range []struct {
		name   string
		change func(*lws.LeaderWorkerSet)
		want   bool
	}{
		{"as it was added", func(*lws.LeaderWorkerSet) {}, false},
		{"without one label", func(w *lws.LeaderWorkerSet) { delete(w.Labels, record.RoleLabel) }, false},
		{"without labels", func(w *lws.LeaderWorkerSet) { w.Labels = nil }, false},
		{"handed over", func(w *lws.LeaderWorkerSet) { w.Labels, w.OwnerReferences = nil, nil }, true},
	} {
		set := green.DeepCopy()
		tt.change(set)
		s := newBed(t, stable, set).look()
		if s.Succeeded != tt.want {
			t.Errorf("%s: succeeded %t", tt.name, s.Succeeded)
		}
		if _, deletes := next(t, s).Action.(plan.DeleteStable); deletes != tt.want {
			t.Errorf("%s: the user's workload goes: %t", tt.name, deletes)
		}
	}
}

// One request makes the second set a workload: nothing ties it to the other any more, and the template that was edited
// meanwhile comes with the hold.
func TestHandOver(t *testing.T) {
	for _, edited := range []bool{false, true} {
		stable := inPhase(t, record.Adopting)
		rec, err := record.DecodeRecord(inPhase(t, record.Promoting).Annotations[record.RecordAnnotation])
		if err != nil {
			t.Fatal(err)
		}
		rec.Release.Phase, rec.Release.Successor, rec.Release.Groups = record.Adopting, "vllm-new", 4
		stable = withRecord(t, stable, *rec)
		stable.Annotations[record.HistoryLimitAnnotation] = "3"
		green := canaryOf(t, stable)
		if edited {
			stable.Spec.LeaderWorkerTemplate.WorkerTemplate.Labels = map[string]string{"edited": "true"}
		}
		b := newBed(t, stable, green)
		var sent []operation
		b.failPatches(func() error { return ErrBehind })
		s := b.look()
		_, _ = b.engine.Applier.Apply(t.Context(), s, plan.HandOver{Name: green.Name, Record: record.Record{Saved: rec.Saved, Workload: "vllm"}})
		for _, a := range b.sets.Actions() {
			if p, ok := a.(interface{ GetPatch() []byte }); ok {
				if err := json.Unmarshal(p.GetPatch(), &sent); err != nil {
					t.Fatal(err)
				}
			}
		}
		done := map[string]any{}
		for _, o := range sent {
			if o.Op != "test" {
				done[o.Op+" "+o.Path] = o.Value
			}
		}
		want := []string{
			"add /metadata/annotations/lockstep.dev~1release", "remove /metadata/annotations/lockstep.dev~1target",
			"add /metadata/annotations/lockstep.dev~1history-limit", "add /metadata/labels/lockstep.dev~1workload",
			"remove /metadata/labels/lockstep.dev~1role", "remove /metadata/labels/lockstep.dev~1stable", "remove /metadata/labels/lockstep.dev~1revision",
			"add /metadata/finalizers", "add /metadata/ownerReferences", "add /spec/rolloutStrategy/rollingUpdateConfiguration",
		}
		if edited {
			want = append(want, "add /spec/leaderWorkerTemplate")
		}
		for _, w := range want {
			if _, ok := done[w]; !ok {
				t.Errorf("edited %t: no %s", edited, w)
			}
		}
		if len(done) != len(want) {
			t.Errorf("edited %t: more than that is written: %v", edited, done)
		}
		if o, ok := done["add /metadata/ownerReferences"].([]any); !ok || len(o) > 0 {
			t.Errorf("owners %v are left", done["add /metadata/ownerReferences"])
		}
		tests := slices.DeleteFunc(sent, func(o operation) bool { return o.Op != "test" })
		if len(tests) < 5 {
			t.Errorf("it is written whatever has changed: %v", tests)
		}
	}
}

// What an adoption would lose is refused.
func TestCheckAdopts(t *testing.T) {
	adopt := &pb.ReleasePolicy{BlueGreen: &pb.BlueGreenPolicy{Promotion: pb.BluePromotion_BLUE_PROMOTION_ADOPT}}
	for name, tt := range map[string]struct {
		policy *pb.ReleasePolicy
		change func(*lws.LeaderWorkerSet)
		want   pb.ErrorReason
	}{
		"nothing":  {adopt, func(*lws.LeaderWorkerSet) {}, 0},
		"in place": {&pb.ReleasePolicy{}, func(w *lws.LeaderWorkerSet) { w.Labels = map[string]string{"kustomize.toolkit.fluxcd.io/name": "a"} }, 0},
		"Flux": {
			adopt, func(w *lws.LeaderWorkerSet) { w.Labels = map[string]string{"kustomize.toolkit.fluxcd.io/name": "a"} },
			pb.ErrorReason_ERROR_REASON_FOREIGN_OWNER,
		},
		"Argo CD": {
			adopt, func(w *lws.LeaderWorkerSet) { w.Annotations["argocd.argoproj.io/tracking-id"] = "a" }, pb.ErrorReason_ERROR_REASON_FOREIGN_OWNER,
		},
		"volumes": {adopt, func(w *lws.LeaderWorkerSet) {
			w.Spec.LeaderWorkerTemplate.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{}}
		}, pb.ErrorReason_ERROR_REASON_UNSUPPORTED},
	} {
		w := unrecorded()
		w.Labels, w.Annotations = nil, map[string]string{}
		tt.change(w)
		o := plan.Observation{Key: KeyOf(w), Identity: newBed(t).engine.Observer.Caches.identity(w)}
		refused := pb.ErrorReason_ERROR_REASON_UNSPECIFIED
		for _, err := range (plan.Begin{Policy: tt.policy}).Obstacles(o) {
			if reason := drivererr.Reason(err); reason == pb.ErrorReason_ERROR_REASON_FOREIGN_OWNER || reason == pb.ErrorReason_ERROR_REASON_UNSUPPORTED {
				refused = reason
			}
		}
		if refused != tt.want {
			t.Errorf("%s: %v", name, refused)
		}
	}
}
