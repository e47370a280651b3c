// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/fakes"

	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
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
	b := restingFixture(t, lwstest.HistoryRevision(t, promoted("first", 1), "vllm:0"), lwstest.HistoryRevision(t, rolledBack, "vllm:bad"),
		lwstest.HistoryRevision(t, promoted("new", 3), "vllm:2"), edited)
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
