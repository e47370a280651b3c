// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/fakes"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Undo writes once, as a field manager of its own and on condition that the workload is as it was seen; what is there, or
// can't be had, is not written.
func TestUndo(t *testing.T) {
	promoted := func(revision string, number int64) plan.Entry {
		return plan.Entry{Revision: revision, Number: number, Release: "r", Outcome: plan.Promoted}
	}
	rolledBack := promoted("bad", 2)
	rolledBack.Outcome = plan.RolledBack
	edited := lwstest.HistoryRevision(t, promoted("edited", 4), "vllm:4")
	edited.Revision = 9
	core, w := lwstest.AtRest(t, lwstest.HistoryRevision(t, promoted("first", 1), "vllm:0"), lwstest.HistoryRevision(t, rolledBack, "vllm:bad"),
		lwstest.HistoryRevision(t, promoted("new", 3), "vllm:2"), edited)
	b := newFixtureOn(t, core, lwstest.NoRoutes(), w)
	var patched []clienttesting.PatchActionImpl // by Undo itself: the workers have nothing to write
	fakes.React(&b.Sets.Fake, "patch", "leaderworkersets", func(a clienttesting.Action) (bool, runtime.Object, error) {
		patched = append(patched, a.(clienttesting.PatchActionImpl))
		return true, b.engine.Observer.Caches.Workload(lwstest.VLLM), nil // as if another client had restored the template at once
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
		assert.True(t, drivererr.Reason(err) == tt.reason && r.GetRevision() == tt.want && r.GetAction() == tt.action,
			"%q: %v, %v", tt.revision, r, err)
		if (len(patched) == 1) != (tt.image != "") {
			t.Errorf("%q: %d writes", tt.revision, len(patched))
			continue
		}
		for _, p := range patched {
			lwstest.ErrorContains(t, fmt.Errorf("%s", p.Patch), `"value":"stable"`, "/metadata/generation", tt.image)
			assert.Equal(t, record.UndoManager, p.PatchOptions.FieldManager, "%q: field manager", tt.revision)
		}
	}
	// A template that the caller has not seen is not overwritten.
	for seen, reason := range map[string]pb.ErrorReason{"new": 0, "another": pb.ErrorReason_ERROR_REASON_REVISION_CHANGED} {
		patched = nil
		_, err := b.Undo(t.Context(), &pb.UndoRequest{Workload: vllmRef, Revision: "first", TemplateRevision: seen})
		assert.True(t, drivererr.Reason(err) == reason && (len(patched) == 1) == (reason == 0), "seen %q: %v, %d writes", seen, err, len(patched))
	}
}

// Disown returns what prevents it, and writes nothing.
func TestDisownOfPercentagesThatRoundToZero(t *testing.T) {
	w := lwstest.WithRecord(t, lwstest.StableWorkload(), record.Record{Saved: lwstest.Rolling(0, "10%", "0%")})
	b := newFixture(t, w)
	b.run()
	b.eventually("the driver serves", b.Synced)
	request := &pb.DisownRequest{Workload: &pb.WorkloadRef{Namespace: w.Namespace, Name: w.Name}}
	_, err := b.Disown(t.Context(), request)
	assert.Equal(t, pb.ErrorReason_ERROR_REASON_REJECTED, drivererr.Reason(err), "Disown: %v", err)
	assert.Empty(t, b.Writes(), "writes")
}

// What the admission policy noted counts as saved. An edited note is reported.
func TestNotedConfigurationIsSaved(t *testing.T) {
	w := lwstest.WithRecord(t, lwstest.StableWorkload(), record.Record{Saved: lwstest.Rolling(0, "1", "0")})
	w.Spec.RolloutStrategy.RollingUpdateConfiguration = ptr.To(record.Hold())
	w.Annotations[record.WantedMaxSurge] = "50%"
	b := newFixture(t, w)
	s := b.look()
	want := lwstest.Rolling(0, "1", "50%")
	assert.True(t, record.SameRolling(s.Record.Saved, want), "saved is %+v, want %+v", s.Record.Saved, want)
	w.Annotations[record.WantedMaxSurge] = "plenty"
	b = newFixture(t, w)
	_, err := b.engine.Observe(lwstest.VLLM)
	reason := drivererr.Reason(err)
	assert.Equal(t, pb.ErrorReason_ERROR_REASON_RECORD_INVALID, reason, "reason %s, want RECORD_INVALID", reason)
	lwstest.ErrorContains(t, err, record.WantedMaxSurge, "plenty", "Remove it")
}

// A user who may create ControllerRevisions can add more to a history than the driver keeps: the answer, and what it costs the API server, stay
// bounded.
func TestListRevisionsIsBounded(t *testing.T) {
	var kept []runtime.Object
	const all = 200
	for n := range int64(all) {
		e := plan.Entry{Revision: fmt.Sprintf("r-%d", n), Number: n + 1, Release: "r", Outcome: plan.Promoted}
		kept = append(kept, lwstest.HistoryRevision(t, e, "vllm:"+strings.Repeat("x", 20<<10)))
	}
	core, w := lwstest.AtRest(t, kept...)
	b := newFixtureWith(t, Options{ReadOnly: true}, core, lwstest.NoRoutes(), w)
	b.runSynced()
	for _, tt := range []struct{ limit, want int }{{0, record.MaxHistoryLimit}, {150, record.MaxHistoryLimit}, {2, 2}} {
		core.ClearActions()
		r, err := b.ListRevisions(t.Context(), &pb.ListRevisionsRequest{Workload: vllmRef, Limit: int32(tt.limit), IncludeTemplates: true})
		require.NoError(t, err)
		revisions, requests := r.GetRevisions(), 0
		for _, a := range core.Actions() {
			if a.Matches("get", "controllerrevisions") {
				requests++
			}
			assert.False(t, a.Matches("list", "controllerrevisions"), "all templates were requested at once")
		}
		if len(revisions) != tt.want || requests > tt.want || proto.Size(r) > 4<<20 {
			t.Errorf("limit %d: %d revisions of %d bytes with %d requests", tt.limit, len(revisions), proto.Size(r), requests)
		}
		if newest := revisions[1]; newest.GetNumber() != all || !strings.Contains(newest.GetTemplate(), "xxx") {
			t.Errorf("limit %d: the newest of the history is %d, with a template of %d bytes", tt.limit, newest.GetNumber(), len(newest.GetTemplate()))
		}
	}
}
