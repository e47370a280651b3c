// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// Labels and annotations of the revision history, repeated here on purpose: they are part of the contract.
const (
	snapshotSelector = "lockstep.dev/role=snapshot"
	limitAnnotation  = "lockstep.dev/history-limit"
)

// The revision history outlives LWS's own revisions and restarts of the driver, and names the user, the release and the outcome.
// Undo restores an older template byte for byte, as a new release.
//
// Proves (test): Plan predicts the release, and writes nothing; undo restores a template that LWS no longer has.
func TestHistoryUndo(t *testing.T) {
	e := newEnv(t)
	w := e.adopt(model("model", 2, 2))
	first := w.template()
	w.mustHaveHistory("1 v1 - stable current")
	w.edit(image("v2"))
	w.initialize("r2", quarters())
	w.awaitHistory("2 v2 r2 HOLDING current", "1 v1 - stable")
	_, err := w.driver.Undo(t.Context(), &pb.UndoRequest{Workload: w.ref()})
	mustFail(t, err, pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS, "r2", "roll it back")
	w.finalize("r2", promote)
	w.mustHaveHistory("2 v2 r2 COMPLETED stable current", "1 v1 -")
	w.edit(image("v3"))
	w.initialize("r3", quarters())
	w.upgrade("r3", 0)
	w.finalize("r3", rollback)
	w.mustHaveHistory("3 v3 r3 ROLLED_BACK current", "2 v2 r2 COMPLETED stable", "1 v1 -")
	w.edit(image("v4"))
	w.awaitHistory("0 v4 - current", "3 v3 r3 ROLLED_BACK", "2 v2 r2 COMPLETED stable", "1 v1 -")
	w.initialize("r4", quarters())
	w.finalize("r4", promote)

	// LWS truncates its revisions once the workload is not under hold.
	w.disown(w.ref())
	w.eventually("LWS keeps one revision only", func(ctx context.Context) error {
		return w.counts(ctx, lws.SetNameLabelKey+"="+w.name, 1) // without those of the StatefulSet, which have that label, too
	})
	_, err = w.driver.Adopt(t.Context(), &pb.AdoptRequest{Workload: w.ref()})
	require.NoError(t, err)
	e.driver.Kill()
	e.driver.Restart()
	history := w.mustHaveHistory("4 v4 r4 COMPLETED stable current", "3 v3 r3 ROLLED_BACK", "2 v2 r2 COMPLETED", "1 v1 -")
	for i, r := range history {
		if by := r.GetChangedBy(); (by == "e2e-user") != (i < 3) || (r.GetOwner() == "e2e/"+t.Name()) != (i < 3) {
			t.Errorf("revision %d was changed by %q, released by %q", r.GetNumber(), by, r.GetOwner())
		}
	}

	// Without a revision: the newest one that served, not one that was rolled back.
	name := w.undo("", configured)
	assert.Equal(t, history[2].GetName(), name, "revision %s is restored, want number 2: %v", name, history)
	w.awaitHistory("4 v4 r4 COMPLETED stable", "3 v3 r3 ROLLED_BACK", "2 v2 r2 COMPLETED current", "1 v1 -")
	w.mustRun("v4")
	w.undo(history[2].GetName(), unchanged)
	w.undo(history[3].GetName(), configured)
	now := w.template()
	assert.Equal(t, first, now, "the template is not restored\n was %s\n now %s", first, now)
	w.awaitHistory("4 v4 r4 COMPLETED stable", "3 v3 r3 ROLLED_BACK", "2 v2 r2 COMPLETED", "1 v1 - current")
	before := w.stablePods()
	w.initialize("r5", quarters())
	w.upgrade("r5", 0)
	w.sameGroups(before)
	w.finalize("r5", promote)
	w.mustRun("v1")
	w.mustBeIdle()
	again := w.mustHaveHistory("5 v1 r5 COMPLETED stable current", "4 v4 r4 COMPLETED", "3 v3 r3 ROLLED_BACK", "2 v2 r2 COMPLETED")
	assert.True(t, again[0].GetName() == history[3].GetName() && again[0].GetChangedBy() == "lockstep-undo", "the newest revision is %v", again[0])
	_, err = w.driver.Undo(t.Context(), &pb.UndoRequest{Workload: w.ref(), Revision: "none"})
	mustFail(t, err, pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND, "none", "4 ("+history[0].GetName()+")")

	// The history outlives Disown, too; and a template that is restored to an unmanaged workload is held.
	w.disown(w.ref())
	before = w.stablePods()
	w.undo("", configured)
	w.await("the template is held", func(c *pb.BatchContext) bool { return c.GetReason() == "NewRevisionWaits" })
	w.sameGroups(before)
	w.mustBeIdle()
}

// The history keeps as many revisions as the annotation sets, and never fewer than those in use.
//
// Proves: History: limits, permissions.
func TestHistoryLimit(t *testing.T) {
	e := newEnv(t)
	w := e.adopt(model("model", 1, 1))
	w.annotate(limitAnnotation, "2")
	for i, tag := range []string{"v2", "v3", "v4"} {
		w.edit(image(tag))
		id := fmt.Sprint("r", i)
		w.initialize(id, policy("100%"))
		w.finalize(id, promote)
	}
	w.awaitHistory("4 v4 r2 COMPLETED stable current", "3 v3 r1 COMPLETED")
	w.annotate(limitAnnotation, "two")
	w.eventually("the invalid limit is reported", func(ctx context.Context) error {
		r, err := w.driver.ListRevisions(ctx, &pb.ListRevisionsRequest{Workload: w.ref(), Limit: 1})
		if err != nil || len(r.GetRevisions()) != 1 || len(r.GetWarnings()) != 1 || r.GetWarnings()[0].GetCode() != "HistoryLimitInvalid" {
			return fmt.Errorf("history %v, %w", r, err)
		}
		return nil
	})
	w.annotate(limitAnnotation, "0")
	w.eventually("no history is left", func(ctx context.Context) error {
		return w.counts(ctx, snapshotSelector, 0)
	})
}

// A driver without the permission to write a history warns of it, and releases nevertheless.
//
// Proves: History: limits, permissions.
func TestHistoryForbidden(t *testing.T) {
	e := newEnvIn(t, cluster.Shared(t))
	e.driver = driver.Start(t, e.grant("no-history", func(resource, verb string) bool {
		return resource == "controllerrevisions" && verb == "create"
	}), e.namespace)
	w := e.adopt(model("model", 1, 1))
	w.edit(image("v2"))
	w.release("r2", policy("100%"))
	r, err := w.driver.ListRevisions(t.Context(), &pb.ListRevisionsRequest{Workload: w.ref()})
	assert.True(t, err == nil && len(r.GetWarnings()) == 1 && r.GetWarnings()[0].GetCode() == "HistoryNotWritten" && strings.Contains(r.GetWarnings()[0].GetMessage(), "create"),
		"history %v, %v", r, err)
}

// mustPrint runs a command, which must succeed and print all words.
func (e *env) mustPrint(words []string, args ...string) {
	e.t.Helper()
	args = append(args, "--namespace", e.namespace)
	if !slices.Contains(args, "--kubeconfig") {
		args = append(args, "--kubeconfig", driver.Kubeconfig(e.t, e.cluster))
	}
	out, errs, code := e.run(args...)
	require.Zero(e.t, code, "lockstep %v\n%s%s", args, out, errs)
	plain := strings.Join(strings.Fields(out), " ")
	for _, word := range words {
		assert.Contains(e.t, plain, strings.Join(strings.Fields(word), " "), "lockstep %v does not print %q:\n%s", args, word, out)
	}
}

// undo restores a template and returns its revision.
func (w *workload) undo(revision string, action pb.Action) string {
	w.t.Helper()
	r, err := w.driver.Undo(w.t.Context(), &pb.UndoRequest{Workload: w.ref(), Revision: revision})
	require.True(w.t, err == nil && r.GetAction() == action, "Undo to %q: %v, %v", revision, r, err)
	w.await("LWS has recorded the template", func(c *pb.BatchContext) bool { return c.GetTemplateRevision() == r.GetRevision() })
	return r.GetRevision()
}

// template returns the template in the spec as JSON, as stored in the API server.
func (w *workload) template() string {
	w.t.Helper()
	var spec struct {
		LeaderWorkerTemplate, NetworkConfig any
	}
	require.NoError(w.t, json.Unmarshal([]byte(w.spec()), &spec))
	return asJSON(spec)
}

// counts returns an error unless LeaderWorkerSets own n of the selected ControllerRevisions.
func (w *workload) counts(ctx context.Context, selector string, n int) error {
	list, err := w.kube.AppsV1().ControllerRevisions(w.namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return err
	}
	found := slices.DeleteFunc(list.Items, func(cr appsv1.ControllerRevision) bool {
		owner := metav1.GetControllerOf(&cr)
		return owner == nil || owner.Kind != "LeaderWorkerSet"
	})
	if len(found) != n {
		return fmt.Errorf("%d ControllerRevisions, want %d", len(found), n)
	}
	return nil
}

// mustHaveHistory fails unless the revisions are these, newest first: number, image tag, release, outcome, stable, current.
func (w *workload) mustHaveHistory(want ...string) []*pb.Revision {
	w.t.Helper()
	all, err := w.hasHistory(w.t.Context(), want)
	require.NoError(w.t, err)
	return all
}

func (w *workload) awaitHistory(want ...string) (all []*pb.Revision) {
	w.t.Helper()
	w.eventually("the history is written", func(ctx context.Context) (err error) {
		all, err = w.hasHistory(ctx, want)
		return err
	})
	return all
}

// hasHistory returns the history, and an error unless its revisions are these. The tag is that of all images.
func (w *workload) hasHistory(ctx context.Context, want []string) ([]*pb.Revision, error) {
	r, err := w.env.driver.ListRevisions(ctx, &pb.ListRevisionsRequest{Workload: w.ref()})
	if err != nil {
		return nil, err
	}
	got := make([]string, 0, len(want))
	for _, r := range r.GetRevisions() {
		var tags []string
		for _, image := range r.GetImages() {
			if _, tag, _ := strings.Cut(image, "model:"); !slices.Contains(tags, tag) {
				tags = append(tags, tag)
			}
		}
		words := []string{fmt.Sprint(r.GetNumber()), strings.Join(tags, ","), "-"}
		if r.GetReleaseId() != "" {
			words[2] = r.GetReleaseId() + " " + strings.TrimPrefix(r.GetOutcome().String(), "STATE_")
		}
		if r.GetStable() {
			words = append(words, "stable")
		}
		if r.GetCurrent() {
			words = append(words, "current")
		}
		got = append(got, strings.Join(words, " "))
	}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		return nil, fmt.Errorf("the history is\n%s\nwant\n%s\nwarnings %v", g, w, r.GetWarnings())
	}
	return r.GetRevisions(), nil
}
