// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// One request makes the second set a workload: nothing ties it to the other any more, and the template that was edited
// meanwhile comes with the hold.
func TestHandOver(t *testing.T) {
	for _, edited := range []bool{false, true} {
		stable := lwstest.InPhase(t, record.HandingOver)
		rec, err := record.DecodeRecord(lwstest.InPhase(t, record.Promoting).Annotations[record.RecordAnnotation])
		require.NoError(t, err)
		rec.Release.Phase, rec.Release.Successor, rec.Release.Groups = record.HandingOver, "vllm-new", 4
		stable = lwstest.WithRecord(t, stable, *rec)
		stable.Annotations[record.HistoryLimitAnnotation] = "3"
		green := lwstest.Canary(t, stable)
		if edited {
			stable.Spec.LeaderWorkerTemplate.WorkerTemplate.Labels = map[string]string{"edited": "true"}
		}
		b := newFixture(t, stable, green)
		var sent []operation
		b.FailPatches(func() error { return observe.ErrBehind })
		s := b.look()
		_, _ = b.Apply(t.Context(), s, plan.HandOver{Name: green.Name, Record: record.Record{Saved: rec.Saved, Workload: "vllm"}})
		for _, a := range b.Sets.Actions() {
			if p, ok := a.(interface{ GetPatch() []byte }); ok {
				require.NoError(t, json.Unmarshal(p.GetPatch(), &sent))
			}
		}
		done := map[string]any{}
		for _, o := range sent {
			if o.Op != "test" {
				done[o.Op+" "+o.Path] = o.Value
			}
		}
		want := []string{
			"add /metadata/annotations/lockstep.dev~1release", "remove /metadata/annotations/lockstep.dev~1target", "remove /metadata/annotations/lockstep.dev~1added-to",
			"add /metadata/annotations/lockstep.dev~1history-limit", "add /metadata/labels/lockstep.dev~1workload",
			"remove /metadata/labels/lockstep.dev~1role", "remove /metadata/labels/lockstep.dev~1stable", "remove /metadata/labels/lockstep.dev~1revision",
			"add /metadata/finalizers", "add /metadata/ownerReferences", "add /spec/rolloutStrategy/rollingUpdateConfiguration",
		}
		if edited {
			want = append(want, "add /spec/leaderWorkerTemplate")
		}
		for _, w := range want {
			_, ok := done[w]
			assert.True(t, ok, "edited %t: no %s", edited, w)
		}
		assert.Len(t, done, len(want), "edited %t: more than that is written", edited)
		o, ok := done["add /metadata/ownerReferences"].([]any)
		assert.True(t, ok && len(o) == 0, "owners %v are left", done["add /metadata/ownerReferences"])
		tests := slices.DeleteFunc(sent, func(o operation) bool { return o.Op != "test" })
		assert.GreaterOrEqual(t, len(tests), 5, "it is written whatever has changed: %v", tests)
	}
}
