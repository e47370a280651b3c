// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// quarters is a release in three batches with a pause after each of the first two. Steps 0, 2, 4 and 5 are the plugin's.
var quarters = step("upgrade: 25%") + pause + step("upgrade: 50%") + pause + step("upgrade: 100%") + step("promote: true")

// An edit of the LeaderWorkerSet starts the Rollout; each step moves whole groups; the Rollout is healthy only after the
// promotion.
//
// Proves (smoke): Argo: the first deployment is Healthy; an edit runs through all steps to Healthy.
func TestRelease(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters, slow())
	before := e.Identities()
	toPause(e)
	e.mustHave("v1", groups, 0)
	e.mustHave("v2", 0, 1)
	e.argo("promote", name)
	e.awaitPause(3)
	e.mustHave("v1", groups, 0)
	e.mustHave("v2", 0, 2)
	e.same(before)
	e.argo("promote", name)
	e.await("the Rollout is healthy, and not before the promotion", func(r *v1alpha1.Rollout) bool {
		if r.Status.Phase != v1alpha1.RolloutPhaseHealthy {
			return false
		}
		require.NoError(t, e.Only(t.Context(), "v2"), "the Rollout is healthy")
		return true
	})
	e.MustRest("v2")
}

// The workload is created after its Rollout: it is held from the beginning.
//
// Proves: Argo Rollouts: the other verbs in docs/argo-rollouts.md.
func TestWorkloadLater(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.rollout(quarters)
	e.deploy(slow())
	e.awaitRest("v1")
	before := e.Identities()
	toPause(e)
	e.same(before)
	e.argo("promote", "--full", name)
	e.awaitRest("v2")
}

// An edit during the release: Argo restarts at the first step, with the new template.
//
// Proves (test): Argo: retry; an edit in mid-release; undo, also with all steps skipped.
func TestEditInMidRelease(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters, slow())
	toPause(e)
	e.argo("promote", name)
	e.awaitPause(3)
	e.edit("v3")
	e.Eventually("the first batch of v3", func(ctx context.Context) error {
		if _, canary, err := e.counts(ctx, "v3"); err != nil || canary != 1 {
			return fmt.Errorf("%d groups, %w", canary, err)
		}
		return nil
	})
	e.awaitPause(1)
	e.mustHave("v1", groups, 0)
	e.mustHave("v2", 0, 0)
	e.argo("promote", "--full", name)
	e.awaitRest("v3")
}

// Steps that are inserted in mid-release: Argo restarts at the first step, and each step updates its own groups, not a batch of the steps before.
//
// Proves: Argo Rollouts: the other verbs in docs/argo-rollouts.md.
func TestStepsEditedInMidRelease(t *testing.T) {
	t.Parallel()
	e := newRelease(t, step("upgrade: 25%")+pause+step("upgrade: 100%")+step("promote: true"), slow())
	toPause(e)
	e.rollout(quarters, slow())
	e.awaitPause(1)
	e.mustHave("v2", 0, 1)
	e.argo("promote", name)
	e.awaitPause(3)
	e.mustHave("v2", 0, 2)
	e.argo("promote", name)
	e.awaitRest("v2")
}

// A Rollout that is resumed by the edit that shortens its steps: Argo notes the edit before it starts over, with the index of the steps before.
//
// Proves: Argo Rollouts: the other verbs in docs/argo-rollouts.md.
func TestStepsShortenedWhilePaused(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters, slow())
	toPause(e)
	e.argo("promote", name)
	e.awaitStep(2)
	e.patch(`{"spec": {"paused": true}}`)
	e.await("the Rollout is paused by its spec", func(r *v1alpha1.Rollout) bool {
		return index(r) >= 2 && r.Status.Phase == v1alpha1.RolloutPhasePaused && len(r.Status.PauseConditions) == 0
	})
	e.mustHave("v2", 0, 2)
	e.patch(`{"spec": {"paused": false, "strategy": {"canary": {"steps": [{"plugin": {"name": "lockstep/lws", "config": {"upgrade": "25%"}}}, {"pause": {}}]}}}}`)
	e.awaitPause(1)
	e.mustHave("v1", groups, 0)
	e.mustHave("v2", 0, 2)
}

// promote --full, in each state of the Rollout. Between steps Argo calls no step for it.
//
// Proves (test): Argo: abort, also while promoting; promote --full.
func TestPromoteFull(t *testing.T) {
	t.Parallel()
	for _, test := range append(slices.Clone(states), state{"last-step", func(e *env) {
		toPauseAgain(e)
		e.argo("promote", name)
		e.awaitStep(5)
	}}) {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			e := newRelease(t, quarters, slow())
			test.reach(e)
			e.argo("promote", "--full", name)
			e.MustRest("v2")
			e.awaitRest("v2")
		})
	}
}

// promote during a running step skips it. What it requested stays requested, and the next steps continue from there.
//
// Proves: Argo: undo and steps skipped in every way; a scaled Rollout.
func TestPromoteWhileAStepRuns(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters, podsWith(cluster.AnnotationStartup, "20s"))
	before := e.Identities()
	e.edit("v2")
	e.awaitCanary()
	e.argo("promote", name)
	e.awaitPause(1)
	e.argo("promote", name)
	e.awaitPause(3)
	e.mustHave("v2", 0, 2)
	e.argo("abort", name)
	e.awaitAborted("v1")
	e.same(before)
}

// What these verbs do in Argo changes no group.
//
// Proves: Argo: undo and steps skipped in every way; a scaled Rollout.
func TestVerbsWithoutEffect(t *testing.T) {
	t.Parallel()
	t.Run("set-image", func(t *testing.T) {
		t.Parallel()
		e := newRelease(t, step("upgrade: 50%")+step("promote: true"))
		before := e.Identities()
		hash := e.get(t.Context()).Status.StableRS
		e.argo("set", "image", name, "none=example.com/none:v2")
		e.await("the Rollout has run its steps", func(r *v1alpha1.Rollout) bool {
			return r.Status.StableRS != hash && r.Status.Phase == v1alpha1.RolloutPhaseHealthy
		})
		e.awaitRest("v1")
		e.same(before)
	})
	t.Run("pause", func(t *testing.T) {
		t.Parallel()
		e := newRelease(t, quarters, slow())
		e.edit("v2")
		e.awaitCanary()
		e.argo("pause", name)
		e.Eventually("what was requested continues", func(ctx context.Context) error {
			_, canary, err := e.counts(ctx, "v2")
			if err == nil && canary != 1 {
				err = fmt.Errorf("%d groups", canary)
			}
			return err
		})
		e.patch(`{"spec": {"paused": false}}`)
		e.awaitPause(1)
	})
	t.Run("abort-when-stable", func(t *testing.T) {
		t.Parallel()
		e := newRelease(t, quarters, slow())
		e.edit("v2")
		e.awaitPause(1)
		e.argo("promote", "--full", name)
		e.await("Argo considers the template stable", func(r *v1alpha1.Rollout) bool {
			return r.Status.StableRS != "" && r.Status.StableRS == r.Status.CurrentPodHash && r.Status.Phase == v1alpha1.RolloutPhaseHealthy
		})
		e.argo("abort", name)
		e.Eventually("every group is promoted all the same", func(ctx context.Context) error { return e.Only(ctx, "v2") })
	})
}

// state is a state of a release in which a user ends it.
type state struct {
	name  string
	reach func(e *env)
}

var states = []state{
	{"first-groups-starting", func(e *env) { e.edit("v2"); e.awaitCanary() }},
	{"paused", toPause},
	{"second-groups-starting", func(e *env) { toPause(e); e.argo("promote", name); e.awaitStep(2) }},
	{"paused-again", toPauseAgain},
	{"last-groups-starting", func(e *env) { toPauseAgain(e); e.argo("promote", name); e.awaitStep(4) }},
}

func toPauseAgain(e *env) { toPause(e); e.argo("promote", name); e.awaitPause(3) }

// Argo calls Abort once. The canary is deleted, and no group of the workload is touched.
//
// Proves (test): Argo: abort, also while promoting; promote --full.
func TestAbort(t *testing.T) {
	t.Parallel()
	for _, test := range states {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			e := newRelease(t, quarters, slow())
			before := e.Identities()
			test.reach(e)
			e.argo("abort", name)
			e.awaitAborted("v1")
			e.same(before)
		})
	}
}

// A promotion that has begun is rolled back.
//
// Proves (test): Argo: abort, also while promoting; promote --full.
func TestAbortWhilePromoting(t *testing.T) {
	t.Parallel()
	e := newRelease(t, step("upgrade: 100%")+step("promote: true"), podsWith(cluster.AnnotationStartup, "2s"))
	e.edit("v2")
	e.awaitStep(1)
	e.Eventually("the promotion has begun", func(ctx context.Context) error {
		if stable, _, err := e.counts(ctx, "v1"); err != nil || stable == groups {
			return fmt.Errorf("%d groups are at v1, %w", stable, err)
		}
		return nil
	})
	e.argo("abort", name)
	e.awaitAborted("v1")
}

// After an abort, retry runs all steps again with the same template.
//
// Proves (test): Argo: retry; an edit in mid-release; undo, also with all steps skipped.
func TestRetry(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters, slow())
	toPause(e)
	e.argo("promote", name)
	e.awaitStep(2)
	e.argo("abort", name)
	e.awaitAborted("v1")
	e.argo("retry", "rollout", name)
	e.awaitPause(1)
	e.mustHave("v1", groups, 0)
	e.mustHave("v2", 0, 1)
	e.argo("promote", name)
	e.awaitPause(3)
	e.argo("promote", name)
	e.awaitRest("v2")
}

// After an abort, another template is a new release.
//
// Proves: Argo: an edit after an abort.
func TestEditAfterAbort(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters, slow())
	toPause(e)
	e.argo("abort", name)
	e.awaitAborted("v1")
	e.edit("v3")
	e.awaitPause(1)
	e.mustHave("v3", 0, 1)
	e.argo("promote", "--full", name)
	e.awaitRest("v3")
}

// undo releases the template of an older revision through all steps, although LWS has deleted its revision.
//
// Proves (test): Argo: retry; an edit in mid-release; undo, also with all steps skipped.
func TestUndo(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters, slow())
	for _, tag := range []string{"v2", "v3"} {
		e.edit(tag)
		e.awaitPause(1)
		e.argo("promote", "--full", name)
		e.awaitRest(tag)
	}
	e.forget()
	for _, undo := range []struct {
		args       []string
		from, back string
	}{{nil, "v3", "v2"}, {[]string{"--to-revision=1"}, "v2", "v1"}} {
		e.argo(append([]string{"undo", name}, undo.args...)...)
		e.awaitPause(1)
		e.mustHave(undo.from, groups, 0)
		e.mustHave(undo.back, 0, 1)
		e.argo("promote", "--full", name)
		e.awaitRest(undo.back)
	}
}

// undo, and then no step of the plugin runs: Argo considers the older template stable at once, and the groups get it.
//
// Proves (test, promote-full): Argo: retry; an edit in mid-release; undo, also with all steps skipped.
// Proves: Argo: undo and steps skipped in every way; a scaled Rollout.
func TestUndoSkipped(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, spec string
		skip       func(e *env)
	}{
		{"promote-full", "", func(e *env) { e.awaitPause(0); e.argo("promote", "--full", name) }},
		{"skip-all-steps", "", func(e *env) { e.awaitPause(0); e.argo("promote", "--skip-all-steps", name) }},
		{"rollback-window", "\nrollbackWindow: {revisions: 3}", func(*env) {}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			e := newRelease(t, pause+quarters, slow(), withSpec("progressDeadlineSeconds: 2147483647"+test.spec))
			// A rollbackWindow counts ReplicaSets by their times of creation, which have whole seconds.
			first := time.Now().Unix()
			e.Eventually("another second", func(context.Context) error {
				if time.Now().Unix() == first {
					return errors.New("the same second")
				}
				return nil
			})
			e.edit("v2")
			e.awaitPause(0)
			e.argo("promote", "--full", name)
			e.awaitRest("v2")
			e.argo("undo", name)
			test.skip(e)
			e.MustRest("v1")
			e.awaitRest("v1")
		})
	}
}

// A template that the history no longer has: the step reports it at once, no group is touched, and the remedy in the message
// works.
//
// Proves: Argo Rollouts: the other verbs in docs/argo-rollouts.md.
func TestUndoForgotten(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	e.annotateWorkload(record.HistoryLimitAnnotation, "1")
	for _, tag := range []string{"v2", "v3"} {
		e.edit(tag)
		e.awaitPause(1)
		e.argo("promote", "--full", name)
		e.awaitRest(tag)
	}
	e.forget()
	e.Eventually("the history has what the last release was about", func(ctx context.Context) error {
		return e.snapshots(ctx, 2)
	})
	before := e.Identities()
	e.argo("undo", name, "--to-revision=1")
	e.awaitSaid(name, "can't be undone", "the history of LeaderWorkerSet", "kubectl apply or from Git", "retry rollout "+name)
	e.same(before)
	e.edit("v1")
	e.argo("retry", "rollout", name)
	e.awaitPause(1)
	e.mustHave("v1", 0, 1)
	e.argo("promote", "--full", name)
	e.awaitRest("v1")
}

// forget makes LWS delete all revisions but the present one. LWS does so itself only if it observes the end of a promotion
// before the hold is restored, which depends on timing.
func (e *env) forget() {
	e.T.Helper()
	w := e.Workload(e.T.Context())
	pods, err := e.Kube.CoreV1().Pods(e.Namespace).List(e.T.Context(), metav1.ListOptions{LabelSelector: lws.SetNameLabelKey + "=" + name})
	if err != nil || len(pods.Items) == 0 {
		e.T.Fatalf("%d pods, %v", len(pods.Items), err)
	}
	selector := fmt.Sprintf("%s=%s,%s!=%s", lws.SetNameLabelKey, w.Name, lws.RevisionKey, pods.Items[0].Labels[lws.RevisionKey])
	require.NoError(e.T, e.Kube.AppsV1().ControllerRevisions(e.Namespace).
		DeleteCollection(e.T.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: selector}))
}

// snapshots fails unless the history has n revisions.
func (e *env) snapshots(ctx context.Context, n int) error {
	list, err := e.Kube.AppsV1().ControllerRevisions(e.Namespace).
		List(ctx, metav1.ListOptions{LabelSelector: record.RoleLabel + "=" + record.RoleSnapshot})
	if err == nil && len(list.Items) != n {
		err = fmt.Errorf("it has %d, not %d", len(list.Items), n)
	}
	return err
}

func (e *env) annotateWorkload(key, value string) {
	e.T.Helper()
	patch := asJSON(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
	suite.Patch(e.T, e.Sets(), name, patch)
}

// restart makes Argo restart the pods of a Rollout. Here it has none; the documented behaviour is that no group restarts.
//
// Proves: Argo Rollouts: the other verbs in docs/argo-rollouts.md.
func TestRestart(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	before := e.Identities()
	e.argo("restart", name)
	e.await("the restart is noticed", func(r *v1alpha1.Rollout) bool {
		return r.Spec.RestartAt != nil && r.Status.RestartedAt != nil && r.Status.RestartedAt.Equal(r.Spec.RestartAt)
	})
	e.awaitRest("v1")
	e.same(before)
	toPause(e)
	e.argo("promote", "--full", name)
	e.awaitRest("v2")
}

// Deleting the Rollout restores the workload, in any state of a release.
//
// Proves (test): Argo: deletion; analysis; the controller is killed in each phase.
func TestRolloutDeleted(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		reach func(e *env)
		tag   string
	}{
		{"at-rest", func(*env) {}, "v1"},
		{"in-mid-release", func(e *env) { e.edit("v2"); e.awaitPause(1) }, "v2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			e := newRelease(t, quarters, slow())
			before := e.Identities()
			test.reach(e)
			suite.DeleteObject(t, e.Objects(rollouts), name)
			if test.tag == "v2" {
				// LeaderWorkerSet would roll out v2, which was rolled back.
				e.MustRest("v1")
				e.edit("v1")
			}
			e.Eventually("the workload is the user's again", func(ctx context.Context) error { return e.disowned(ctx, "v1") })
			e.Eventually("the Rollout is deleted", func(ctx context.Context) error {
				_, err := e.tryGet(ctx, name)
				return suite.Gone(err)
			})
			after := e.Identities()
			assert.True(t, maps.Equal(before, after), "groups were replaced: %v before, %v after", before, after)
		})
	}
}

// disowned returns an error if anything of Lockstep is left on the workload.
func (e *env) disowned(ctx context.Context, tag string) error {
	w := e.Workload(ctx)
	if rolling := w.Spec.RolloutStrategy.RollingUpdateConfiguration; rolling != nil && record.SameRolling(*rolling, record.Hold()) {
		return errors.New("the hold is there")
	}
	for key := range w.Annotations {
		if strings.HasPrefix(key, "lockstep.dev/") {
			return fmt.Errorf("annotation %s is there", key)
		}
	}
	// A template that waited is rolled out by LWS.
	return e.Only(ctx, tag)
}
