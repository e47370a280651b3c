// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

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
