// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/fakes"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Each entry is one write that the caches show when it returns; a template that is not in the spec comes from LWS.
func TestHistoryWrites(t *testing.T) {
	b := restingFixture(t)
	b.runSynced()
	s := b.look()
	for _, step := range []struct {
		action plan.Action
		wrote  bool
		want   []string
	}{
		{plan.SaveRevision{Entry: plan.Entry{Revision: "old", Number: 1, At: lwstest.Noon}}, true, []string{"1 old vllm:1 "}},
		{plan.SaveRevision{Entry: plan.Entry{Revision: "new", Number: 2, At: lwstest.Noon, Release: "r1"}}, true, []string{"1 old vllm:1 ", "2 new vllm:2 "}},
		{plan.DeleteRevision{Revision: "old"}, true, []string{"2 new vllm:2 "}},
		{plan.DeleteRevision{Revision: "old"}, false, []string{"2 new vllm:2 "}},
	} {
		wrote, err := b.Apply(t.Context(), s, step.action)
		require.True(t, wrote == step.wrote && err == nil, "%v: %t, %v", step.action, wrote, err)
		got := b.kept()
		assert.True(t, slices.Equal(got, step.want), "%v: the history is %q, want %q", step.action, got, step.want)
	}
	e := b.observer.History.Find(s, "new").Entry
	e.Outcome, e.Ended = plan.Promoted, lwstest.Noon
	wrote, err := b.Apply(t.Context(), s, plan.SaveRevision{Entry: e})
	require.True(t, wrote && err == nil, "the end: %t, %v", wrote, err)
	b.eventually("the end is noted", func() bool { return slices.Equal(b.kept(), []string{"2 new vllm:2 Promoted"}) })
}

// A revision that another driver created meanwhile, or a request whose response was lost, counts as written; a foreign object
// does not.
func TestHistoryExistsAlready(t *testing.T) {
	e := plan.Entry{Revision: "new", Number: 1, At: lwstest.Noon}
	for _, foreign := range []bool{false, true} {
		b := restingFixture(t)
		there := lwstest.HistoryRevision(t, e, "vllm:2")
		if foreign {
			there.Labels = nil
		}
		fakes.React(&b.Core.Fake, "create", "controllerrevisions", func(clienttesting.Action) (bool, runtime.Object, error) {
			assert.NoError(t, b.Core.Tracker().Add(there))
			return true, nil, apierrors.NewAlreadyExists(appsv1.Resource("controllerrevisions"), there.Name)
		})
		b.runSynced()
		_, err := b.Apply(t.Context(), b.look(), plan.SaveRevision{Entry: e})
		assert.False(t, foreign != (drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_NAME_TAKEN) || !foreign && err != nil,
			"foreign %t: %v", foreign, err)
	}
}

// A workload that is not adopted would roll at once: the same request sets the hold and saves the user's configuration. The hold of an adopted
// one may have been overwritten a moment ago.
func TestUndoHolds(t *testing.T) {
	drifted := lwstest.InPhase(t, record.Promoted)
	drifted.Spec.RolloutStrategy.RollingUpdateConfiguration = ptr.To(lwstest.Rolling(0, "2", "0"))
	lwstest.ErrorContains(t, restoreTemplateOf(t, lwstest.Unrecorded()), "vllm:1", "1000000", `\"saved\":{`)
	lwstest.ErrorContains(t, restoreTemplateOf(t, drifted), "vllm:1", "1000000", `\"maxUnavailable\":2`)
}

// restoreTemplateOf returns the patch, as an error, that restores an older template of a workload.
func restoreTemplateOf(t *testing.T, w *lws.LeaderWorkerSet) error {
	t.Helper()
	old := lwstest.Revision(t, lwstest.WithImage("vllm:1"), "old")
	b := newFixtureOn(t, fake.NewClientset(old), lwstest.NoRoutes(), w)
	var patch string
	fakes.React(&b.Sets.Fake, "patch", "leaderworkersets", func(a clienttesting.Action) (bool, runtime.Object, error) {
		patch = string(a.(clienttesting.PatchAction).GetPatch())
		return true, nil, apierrors.NewServiceUnavailable("seen")
	})
	b.run()
	b.eventually("the revision is seen", func() bool { _, err := b.observer.Caches.Template(w, "old"); return err == nil })
	s := b.look()
	d, err := plan.Decide(s.Observation, plan.Undo{Revision: "old"})
	require.NoError(t, err)
	_, err = b.Apply(t.Context(), s, d.Action)
	lwstest.ErrorContains(t, err, "seen")
	return errors.New(patch)
}

// kept is the history, from the caches.
func (b *fixture) kept() []string {
	var all []string
	for _, v := range b.observer.History.Of(lwstest.VLLM, "stable") {
		all = append(all, fmt.Sprintf("%d %s %s %s%s", v.Entry.Number, v.Entry.Revision, v.Images[0][len("server="):], v.Entry.Outcome, v.Entry.Problem))
	}
	return all
}
