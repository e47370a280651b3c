// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/audit"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// want is the expected state, numbers of groups and weight of a context.
type want struct {
	state                                              pb.State
	planned, updated, updatedReady, stableReady, total int32
	weight                                             int32
}

func (w *workload) mustMatch(c *pb.BatchContext, want want) {
	w.t.Helper()
	got := wantOf(c)
	assert.Equal(w.t, want, got, "got %+v, want %+v: %s", got, want, show(c))
}

func wantOf(c *pb.BatchContext) want {
	return want{c.GetState(), c.GetPlanned(), c.GetUpdated(), c.GetUpdatedReady(), c.GetStableReady(), c.GetTotal(), c.GetTrafficWeight()}
}

// A release in three batches, with each RPC called twice: the second call writes nothing.
//
// Proves (smoke): SPEC rule 1: repeating a request changes nothing.
func TestCanaryPromote(t *testing.T) {
	e := newEnv(t)
	w := e.deploy(model("model", 4, 2))
	original := w.spec()
	w.mustBeIdempotent("Adopt", func() (pb.Action, error) {
		r, err := w.driver.Adopt(t.Context(), &pb.AdoptRequest{Workload: w.ref()})
		return r.GetAction(), err
	})
	before := w.stablePods()
	w.edit(image("v2"))
	w.await("the new revision waits", func(c *pb.BatchContext) bool { return c.GetReason() == "NewRevisionWaits" })

	w.mustBeIdempotent("Initialize", func() (pb.Action, error) {
		r, err := w.tryInitialize("r1", quarters())
		return r.GetAction(), err
	})
	c := w.context()
	w.mustMatch(c, want{pb.State_STATE_HOLDING, 0, 0, 0, 4, 4, 0})
	assert.True(t, c.GetCanaryWorkload() != "" && c.GetStableRevision() != c.GetUpdateRevision() && c.GetPartition() == holdPartition && c.GetBatches() == 3,
		"after Initialize: %s", show(c))
	for batch, want := range []want{
		{pb.State_STATE_READY, 1, 1, 1, 4, 5, 20},
		{pb.State_STATE_READY, 2, 2, 2, 4, 6, 33},
		{pb.State_STATE_READY, 4, 4, 4, 4, 8, 50},
	} {
		w.mustBeIdempotent(fmt.Sprint("UpgradeBatch ", batch), func() (pb.Action, error) {
			r, err := w.tryUpgrade("r1", int32(batch), long)
			return r.GetAction(), err
		})
		w.awaitMatch(want)
		c := w.context()
		assert.True(t, c.GetCurrentBatch() == int32(batch) && c.CurrentBatch != nil && c.GetTarget() == quarters().GetBatches()[batch],
			"batch %d: %s", batch, show(c))
		if rows := c.GetGroups(); len(rows) != int(want.total) || slices.ContainsFunc(rows, func(g *pb.Group) bool { return !g.GetReady() || g.GetReadyPods() != 2 }) {
			t.Errorf("batch %d: groups %v", batch, rows)
		}
		w.sameGroups(before)
		w.mustRun("v1")
	}
	w.mustChangeNothing("an earlier batch", func() (pb.Action, error) {
		r, err := w.tryUpgrade("r1", 0, long)
		return r.GetAction(), err
	})
	w.mustBeIdempotent("Finalize", w.finalizing("r1", promote))
	w.awaitMatch(want{pb.State_STATE_COMPLETED, 4, 4, 4, 0, 4, 100})
	w.mustBeIdle()
	w.mustRun("v2")
	w.mustHaveEvents("ReleasePrepared", "BatchReady", "Promoting", "ReleaseCompleted")

	w.mustBeIdempotent("Disown", func() (pb.Action, error) {
		r, err := w.driver.Disown(t.Context(), &pb.DisownRequest{Workload: w.ref()})
		return r.GetAction(), err
	})
	w.edit(image("v1"))
	now := w.spec()
	assert.Equal(t, original, now, "the spec is not restored\n was %s\n now %s", original, now)
	assert.Empty(t, w.get().Annotations[recordAnnotation], "the record is left")
}

// finalizing is the call that ends a release, and fails unless it has ended.
func (w *workload) finalizing(id string, intent pb.FinalizeIntent) func() (pb.Action, error) {
	return func() (pb.Action, error) {
		r, err := w.tryFinalize(id, intent, long)
		if err == nil && !r.GetDone() {
			err = fmt.Errorf("not done: %s", show(r.GetContext()))
		}
		return r.GetAction(), err
	}
}

// mustBeIdempotent makes a call twice: the first must report a write, the second must change nothing.
func (w *workload) mustBeIdempotent(what string, call func() (pb.Action, error)) {
	w.t.Helper()
	action, err := call()
	require.True(w.t, err == nil && action == configured, "%s: %v, %v", what, action, err)
	w.mustChangeNothing(what+" again", call)
}

// mustChangeNothing makes a call that must write nothing and report that. The driver may still be writing the history of what was
// done before, which no call waits for.
func (w *workload) mustChangeNothing(what string, call func() (pb.Action, error)) {
	w.t.Helper()
	writes := func() []string {
		return slices.DeleteFunc(w.ownWrites(), func(write string) bool { return strings.Contains(write, "controllerrevisions/") })
	}
	before := len(writes())
	action, err := call()
	assert.True(w.t, err == nil && action == unchanged, "%s: %v, %v", what, action, err)
	assert.Empty(w.t, writes()[before:], "%s wrote", what)
}

// ownWrites returns the writes to the workload and to what its releases add; other subtests may share the namespace.
func (w *workload) ownWrites() []string {
	w.t.Helper()
	return slices.DeleteFunc(w.writes(), func(write string) bool { return !strings.Contains(write, "/"+w.name) })
}

// release runs a whole release with the given policy, to the promotion.
func (w *workload) release(id string, p *pb.ReleasePolicy) {
	w.t.Helper()
	w.initialize(id, p)
	for b := range p.GetBatches() {
		c := w.upgrade(id, int32(b)).GetContext()
		require.Equal(w.t, pb.State_STATE_READY, c.GetState(), "batch %d: %s", b, show(c))
	}
	c := w.finalize(id, promote).GetContext()
	assert.Equal(w.t, pb.State_STATE_COMPLETED, c.GetState(), "after the promotion: %s", show(c))
	w.mustBeIdle()
}

// A workload without groups has nothing to release, and is held like any other.
//
// Proves: Scaling in each style; no groups at all.
func TestCanaryNoReplicas(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 0, 2))
	w.edit(image("v2"))
	r := w.initialize("r1", quarters())
	assert.True(t, r.GetContext().GetState() == pb.State_STATE_NOTHING_TO_RELEASE && len(r.GetWarnings()) != 0, "Initialize: %v", r)
	c := w.upgrade("r1", 2).GetContext()
	assert.Equal(t, pb.State_STATE_NOTHING_TO_RELEASE, c.GetState(), "UpgradeBatch: %s", show(c))
	w.finalize("r1", promote)
	w.mustBeIdle()
	// Before that, new groups would get the former revision.
	w.awaitObject("the leader StatefulSet has the new template as its current revision", func() bool {
		s, err := w.kube.AppsV1().StatefulSets(w.namespace).Get(t.Context(), w.name, metav1.GetOptions{})
		return err == nil && s.Spec.Template.Spec.Containers[0].Image == "example.com/model:v2" &&
			s.Status.ObservedGeneration == s.Generation && s.Status.CurrentRevision == s.Status.UpdateRevision
	})
	w.scale(2)
	w.awaitReady()
	w.mustRun("v2")
}

// maxWrites is the most requests that a canary release of four batches may make to write cluster objects, including refused requests.
const maxWrites = 12

// A release writes a few objects, however many groups there are, and the second one of a process reads none. Events, leases and
// reviews don't count.
//
// Proves (test): A canary of four batches: at most 12 writes, and no reads after the first of a process.
func TestCanaryCost(t *testing.T) {
	e := newEnv(t)
	w := e.deploy(model("model", 4, 2))
	_, err := w.driver.Adopt(t.Context(), &pb.AdoptRequest{Workload: w.ref()})
	require.NoError(t, err)
	revision := ""
	policy := quarters()
	policy.Batches = []string{"25%", "50%", "75%", "100%"}
	for i := range 4 {
		w.edit(image(fmt.Sprintf("v%d", i+2)))
		release := fmt.Sprintf("r%d", i+1)
		w.await("the driver sees the template", func(c *pb.BatchContext) bool { return c.GetTemplateRevision() != revision })
		from := audit.Mark(t, e.kube, e.namespace)
		w.initialize(release, policy)
		for batch := range policy.Batches {
			w.upgrade(release, int32(batch))
		}
		w.finalize(release, promote)
		w.mustBeIdle()
		revision = w.context().GetTemplateRevision()
		var writes, reads []string
		for _, r := range audit.Between(t, e.cluster.AuditLog(), from, audit.Mark(t, e.kube, e.namespace), e.namespace) {
			o := r.ObjectRef
			switch {
			case r.User.Username != driver.User || slices.Contains([]string{"events", "leases"}, o.Resource):
			case r.IsWrite():
				writes = append(writes, fmt.Sprintf("%s/%s %d", r, o.Name, r.ResponseStatus.Code))
			case r.IsRead():
				reads = append(reads, r.Verb+" "+r.RequestURI)
			}
		}
		assert.LessOrEqual(t, len(writes), maxWrites, "release %d has %d writes, want at most %d: %q", i+1, len(writes), maxWrites, writes)
		assert.False(t, i > 0 && len(reads) > 0, "release %d has %d reads: %q", i+1, len(reads), reads)
		t.Logf("release %d: %d writes, %d reads", i+1, len(writes), len(reads))
	}
}

// writes returns the successful writes of drivers in this namespace so far, without events, from the API server's audit log.
func (e *env) writes() []string {
	e.t.Helper()
	var found []string
	for _, r := range audit.Between(e.t, e.cluster.AuditLog(), "", audit.Mark(e.t, e.kube, e.namespace), e.namespace) {
		o := r.ObjectRef
		if r.IsWrite() && r.User.Username == driver.User && o.Namespace == e.namespace && o.Resource != "events" && r.ResponseStatus.Code < http.StatusBadRequest {
			found = append(found, r.Verb+" "+o.Resource+"/"+o.Name)
		}
	}
	return found
}
