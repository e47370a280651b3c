// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record/history"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// imaged is stableWorkload with another image.
func imaged(image string) *lws.LeaderWorkerSet {
	w := stableWorkload()
	w.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers[0].Image = image
	return w
}

// asLWSKeeps is LWS's own ControllerRevision of a workload's template.
func asLWSKeeps(t *testing.T, w *lws.LeaderWorkerSet, hash string) *appsv1.ControllerRevision {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"spec": map[string]any{
		"leaderWorkerTemplate": patchOf(t, w.Spec.LeaderWorkerTemplate),
		"networkConfig":        map[string]any{"subdomainPolicy": "Shared", "$patch": "replace"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name: "vllm-" + hash, Namespace: "default", UID: "lws-owned",
			Labels:          map[string]string{lws.SetNameLabelKey: "vllm", lws.RevisionKey: hash},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(w, lws.GroupVersion.WithKind("LeaderWorkerSet"))},
		},
		Data: runtime.RawExtension{Raw: raw}, Revision: 1,
	}
}

// keptBed is restingBed that runs.
func keptBed(t *testing.T, snapshots ...runtime.Object) *bed {
	t.Helper()
	b := restingBed(t, snapshots...)
	b.runSynced()
	return b
}

func (b *bed) runSynced() {
	b.t.Helper()
	b.run()
	b.eventually("caches are filled", func() bool { return b.Synced() && b.engine.Observer.History.informer.HasSynced() })
}

// restingBed is a driver of a workload whose template is revision "new" and whose LWS remembers "old" as well.
func restingBed(t *testing.T, snapshots ...runtime.Object) *bed {
	t.Helper()
	w := withRecord(t, stableWorkload(), record.Record{UID: "stable", Saved: record.Native(record.Hold())})
	core := fake.NewClientset(append(snapshots, asLWSKeeps(t, w, "new"), asLWSKeeps(t, imaged("vllm:1"), "old"))...)
	return newBedOn(t, core, noRoutes(), w)
}

func snapshotOf(t *testing.T, e plan.Entry, image string) *appsv1.ControllerRevision {
	t.Helper()
	cr, err := history.Object(stableWorkload(), e, record.TemplateOf(imaged(image)))
	if err != nil {
		t.Fatal(err)
	}
	return cr
}

// Each entry is one write that the caches show when it returns; a template that is not in the spec comes from LWS.
func TestHistoryWrites(t *testing.T) {
	b := keptBed(t)
	s := b.look()
	for _, step := range []struct {
		action plan.Action
		wrote  bool
		want   []string
	}{
		{plan.Remember{Entry: plan.Entry{Revision: "old", Number: 1, At: noon}}, true, []string{"1 old vllm:1 "}},
		{plan.Remember{Entry: plan.Entry{Revision: "new", Number: 2, At: noon, Release: "r1"}}, true, []string{"1 old vllm:1 ", "2 new vllm:2 "}},
		{plan.Forget{Revision: "old"}, true, []string{"2 new vllm:2 "}},
		{plan.Forget{Revision: "old"}, false, []string{"2 new vllm:2 "}},
	} {
		if wrote, err := b.engine.Applier.Apply(t.Context(), s, step.action); wrote != step.wrote || err != nil {
			t.Fatalf("%v: %t, %v", step.action, wrote, err)
		}
		if got := b.kept(); !slices.Equal(got, step.want) {
			t.Errorf("%v: the history is %q, want %q", step.action, got, step.want)
		}
	}
	e := b.engine.Observer.History.Find(s.StableObject, "new").Entry
	e.Outcome, e.Ended = plan.Promoted, noon
	if wrote, err := b.engine.Applier.Apply(t.Context(), s, plan.Remember{Entry: e}); !wrote || err != nil {
		t.Fatalf("the end: %t, %v", wrote, err)
	}
	b.eventually("the end is noted", func() bool { return slices.Equal(b.kept(), []string{"2 new vllm:2 Promoted"}) })
}

// kept is the history, from the caches.
func (b *bed) kept() []string {
	var all []string
	for _, v := range b.engine.Observer.History.Of(vllm, "stable") {
		all = append(all, fmt.Sprintf("%d %s %s %s%s", v.Entry.Number, v.Entry.Revision, v.Images[0][len("server="):], v.Entry.Outcome, v.Entry.Problem))
	}
	return all
}

// An entry that another driver made meanwhile, or that is there although the answer was lost, is taken for made. What is
// not Lockstep's is not.
func TestHistoryMade(t *testing.T) {
	e := plan.Entry{Revision: "new", Number: 1, At: noon}
	for _, foreign := range []bool{false, true} {
		b := restingBed(t)
		there := snapshotOf(t, e, "vllm:2")
		if foreign {
			there.Labels = nil
		}
		b.core.PrependReactor("create", "controllerrevisions", func(clienttesting.Action) (bool, runtime.Object, error) {
			if err := b.core.Tracker().Add(there); err != nil {
				t.Error(err)
			}
			return true, nil, apierrors.NewAlreadyExists(appsv1.Resource("controllerrevisions"), there.Name)
		})
		b.runSynced()
		_, err := b.engine.Applier.Apply(t.Context(), b.look(), plan.Remember{Entry: e})
		if got := drivererr.Reason(err); foreign != (got == pb.ErrorReason_ERROR_REASON_NAME_TAKEN) || !foreign && err != nil {
			t.Errorf("foreign %t: %v", foreign, err)
		}
	}
}

// A driver that may not write the history does everything else, says what it lacks, and does not try all the time.
func TestHistoryForbidden(t *testing.T) {
	w := withRecord(t, stableWorkload(), record.Record{UID: "stable", Saved: record.Native(record.Hold())})
	b := newBedOn(t, fake.NewClientset(asLWSKeeps(t, w, "new")), noRoutes(), w)
	b.core.PrependReactor("create", "controllerrevisions", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(appsv1.Resource("controllerrevisions"), "x", fmt.Errorf(`User "u" cannot create resource`))
	})
	s := &Snapshot{Observation: plan.Observation{Key: vllm}, StableObject: w}
	s.Now, s.Stable.Revision = noon, "new"
	action := plan.Remember{Entry: plan.Entry{Revision: "new", Number: 1}}
	if _, err := b.engine.recordHistory(t.Context(), s, action); err != nil {
		t.Errorf("it stands in the way: %v", err)
	}
	if left, err := b.engine.Observer.History.Paused(vllm, noon); left != historyPause || err == nil {
		t.Errorf("it is tried again in %s: %v", left, err)
	}
	if warnings := b.historyWarnings(s); len(warnings) != 1 || warnings[0].GetCode() != "HistoryNotWritten" {
		t.Errorf("warnings %v", warnings)
	}
	b.engine.Observer.readHistory(s)
	if !s.HistoryUnread || s.Recheck != historyPause {
		t.Errorf("the planner would ask again: %+v", s.Observation)
	}
	b.engine.Observer.deleted(vllm)
	if left, err := b.engine.Observer.History.Paused(vllm, noon); left > 0 || err != nil {
		t.Errorf("%s, %v are remembered of a workload that is gone", left, err)
	}
}

// What is not this workload's is none of its history.
func TestHistoryOfOthers(t *testing.T) {
	stranger := snapshotOf(t, plan.Entry{Revision: "x", Number: 1}, "vllm:2")
	stranger.Name, stranger.OwnerReferences[0].UID = "stranger", "older"
	orphan := snapshotOf(t, plan.Entry{Revision: "y", Number: 1}, "vllm:2")
	orphan.Name, orphan.OwnerReferences = "orphan", nil
	other := snapshotOf(t, plan.Entry{Revision: "z", Number: 1}, "vllm:2")
	other.Name, other.Labels[record.StableLabel] = "other", "sglang"
	b := keptBed(t, stranger, orphan, other, snapshotOf(t, plan.Entry{Revision: "new", Number: 1}, "vllm:2"))
	if got := b.kept(); !slices.Equal(got, []string{"1 new vllm:2 "}) {
		t.Errorf("the history is %q", got)
	}
}

// Undo writes once, as a field manager of its own and on condition that the workload is as it was seen; what is there, or
// can't be had, is not written.
func TestUndo(t *testing.T) {
	promoted := func(revision string, number int64) plan.Entry {
		return plan.Entry{Revision: revision, Number: number, Release: "r", Outcome: plan.Promoted}
	}
	rolledBack := promoted("bad", 2)
	rolledBack.Outcome = plan.RolledBack
	edited := snapshotOf(t, promoted("edited", 4), "vllm:4")
	edited.Revision = 9
	b := restingBed(t, snapshotOf(t, promoted("first", 1), "vllm:0"), snapshotOf(t, rolledBack, "vllm:bad"),
		snapshotOf(t, promoted("new", 3), "vllm:2"), edited)
	var patched []clienttesting.PatchActionImpl // by Undo itself: the workers have nothing to write
	b.sets.PrependReactor("patch", "leaderworkersets", func(a clienttesting.Action) (bool, runtime.Object, error) {
		patched = append(patched, a.(clienttesting.PatchActionImpl))
		return true, b.engine.Observer.Caches.Workload(vllm), nil // as if somebody had put the template back at once
	})
	b.runSynced()
	for _, tt := range []struct {
		revision string
		reason   pb.ErrorReason
		want     string // the revision that is named, if it is to be written
		action   pb.Action
		image    string
	}{
		{"", 0, "first", pb.Action_ACTION_CONFIGURED, "vllm:0"},
		{"new", 0, "new", pb.Action_ACTION_UNCHANGED, ""},
		{"bad", 0, "bad", pb.Action_ACTION_CONFIGURED, "vllm:bad"},
		{"old", 0, "old", pb.Action_ACTION_CONFIGURED, "vllm:1"}, // from LWS
		{"edited", pb.ErrorReason_ERROR_REASON_RECORD_INVALID, "", 0, ""},
		{"none", pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND, "", 0, ""},
	} {
		patched = nil
		r, err := b.Undo(t.Context(), &pb.UndoRequest{Workload: vllmRef, Revision: tt.revision})
		if drivererr.Reason(err) != tt.reason || r.GetRevision() != tt.want || r.GetAction() != tt.action {
			t.Errorf("%q: %v, %v", tt.revision, r, err)
		}
		if (len(patched) == 1) != (tt.image != "") {
			t.Errorf("%q: %d writes", tt.revision, len(patched))
			continue
		}
		for _, p := range patched {
			says(t, fmt.Errorf("%s", p.Patch), `"value":"stable"`, "/metadata/generation", tt.image)
			if p.PatchOptions.FieldManager != record.UndoManager {
				t.Errorf("%q: field manager %q", tt.revision, p.PatchOptions.FieldManager)
			}
		}
	}
}

// Who is not adopted would roll at once: the same request holds it, and saves what its user had.
func TestUndoHolds(t *testing.T) {
	says(t, bringBackOf(t, unrecorded()), "vllm:1", "1000000", `\"saved\":{`)
}

// bringBackOf is the patch, as an error for says, that brings an older template of a workload back.
func bringBackOf(t *testing.T, w *lws.LeaderWorkerSet) error {
	t.Helper()
	old := asLWSKeeps(t, imaged("vllm:1"), "old")
	b := newBedOn(t, fake.NewClientset(old), noRoutes(), w)
	view, err := stripRevision(old.DeepCopy())
	if err == nil {
		err = b.engine.Observer.Caches.Revisions.GetIndexer().Add(view)
	}
	if err != nil {
		t.Fatal(err)
	}
	var patch string
	b.sets.PrependReactor("patch", "leaderworkersets", func(a clienttesting.Action) (bool, runtime.Object, error) {
		patch = string(a.(clienttesting.PatchAction).GetPatch())
		return true, nil, apierrors.NewServiceUnavailable("seen")
	})
	s := b.look()
	d, err := plan.Decide(s.Observation, plan.Undo{Revision: "old"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.engine.Applier.Apply(t.Context(), s, d.Action)
	says(t, err, "seen")
	return errors.New(patch)
}

// The hold of a workload that is adopted may have been overwritten a moment ago.
func TestUndoHoldsWhatDrifted(t *testing.T) {
	drifted := inPhase(t, record.Promoted)
	drifted.Spec.RolloutStrategy.RollingUpdateConfiguration = &lws.RollingUpdateConfiguration{
		Partition: ptr.To[int32](0), MaxUnavailable: intstr.FromInt32(2), MaxSurge: intstr.FromInt32(0),
	}
	says(t, bringBackOf(t, drifted), "vllm:1", "1000000", `\"maxUnavailable\":2`)
}

// Who changed a template is the last of those that own something of it.
func TestChangedBy(t *testing.T) {
	at := func(minute int) *metav1.Time {
		return &metav1.Time{Time: noon.Add(-time.Duration(minute) * time.Minute)}
	}
	fields := func(text string) *metav1.FieldsV1 { return &metav1.FieldsV1{Raw: []byte(text)} }
	w := stableWorkload()
	w.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "helm", Time: at(9), FieldsV1: fields(`{"f:spec":{"f:leaderWorkerTemplate":{}}}`)},
		{Manager: "kubectl-edit", Time: at(5), FieldsV1: fields(`{"f:spec":{"f:leaderWorkerTemplate":{"f:size":{}}}}`)},
		{Manager: "creator", Time: at(5), FieldsV1: fields(`{"f:spec":{"f:leaderWorkerTemplate":{"f:size":{},"f:workerTemplate":{}}}}`)},
		{Manager: "lockstep", Time: at(1), FieldsV1: fields(`{"f:spec":{"f:rolloutStrategy":{}}}`)},
		{Manager: "nobody", Time: at(0)},
	}
	view, err := StripWorkload(w)
	if err != nil {
		t.Fatal(err)
	}
	if got := changedBy(view.(*lws.LeaderWorkerSet)); got != "kubectl-edit" || len(w.ManagedFields) != 1 || w.ManagedFields[0].FieldsV1 != nil {
		t.Errorf("%q, of %v", got, w.ManagedFields)
	}
	if got := changedBy(stableWorkload()); got != "" {
		t.Errorf("%q has changed what nobody has", got)
	}
}
