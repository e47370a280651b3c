// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// What is not this workload's is none of its history.
func TestHistoryOfOthers(t *testing.T) {
	stranger := lwstest.HistoryRevision(t, plan.Entry{Revision: "x", Number: 1}, "vllm:2")
	stranger.Name, stranger.OwnerReferences[0].UID = "stranger", "older"
	orphan := lwstest.HistoryRevision(t, plan.Entry{Revision: "y", Number: 1}, "vllm:2")
	orphan.Name, orphan.OwnerReferences = "orphan", nil
	other := lwstest.HistoryRevision(t, plan.Entry{Revision: "z", Number: 1}, "vllm:2")
	other.Name, other.Labels[record.StableLabel] = "other", "sglang"
	b := keptFixture(t, stranger, orphan, other, lwstest.HistoryRevision(t, plan.Entry{Revision: "new", Number: 1}, "vllm:2"))
	got := b.kept()
	assert.True(t, slices.Equal(got, []string{"1 new vllm:2 "}), "the history is %q", got)
}

// keptFixture is restingFixture that runs.
func keptFixture(t *testing.T, snapshots ...runtime.Object) *fixture {
	t.Helper()
	b := restingFixture(t, snapshots...)
	b.runSynced()
	return b
}

// kept is the history, from the caches.
func (b *fixture) kept() []string {
	var all []string
	for _, v := range b.History.Of(lwstest.VLLM, "stable") {
		all = append(all, fmt.Sprintf("%d %s %s %s%s", v.Entry.Number, v.Entry.Revision, v.Images[0][len("server="):], v.Entry.Outcome, v.Entry.Problem))
	}
	return all
}
