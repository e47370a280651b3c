// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"

	"github.com/lockstep-rollouts/lockstep/plugin/argo"
)

// invalid is quarters with an analysis whose template does not exist: Argo reports InvalidSpec.
var invalid = step("upgrade: 25%") + "- analysis: {templates: [{templateName: missing}]}\n" + pause + step("promote: true")

// An invalid Rollout releases nothing: Argo observes its spec, and its status keeps the hashes of the last valid one. Once it is valid, the
// release begins at the first step.
//
// Proves (test, edited): Safety rule 11, Argo: an invalid Rollout, and one that is applied again, release nothing before their first step.
// Proves: Safety rule 11, Argo: undo, edits and backups while the Rollout is invalid, deleted or unattended.
func TestInvalidRollout(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		edits []string
	}{
		{"edited", []string{"v2"}},
		{"edited-twice", []string{"v2", "v3"}},
		{"edited-and-reverted", []string{"v2", "v1", "v2"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			e := newRelease(t, quarters, slow())
			before := e.Identities()
			e.rollout(invalid, slow())
			e.awaitInvalid("")
			for _, tag := range test.edits {
				revision := e.editInvalid(tag)
				e.awaitInvalid(revision)
				e.stays(before)
			}
			tag := test.edits[len(test.edits)-1]
			e.rollout(quarters, slow())
			e.awaitFirstStep(tag, before)
			e.argo("promote", name)
			e.awaitPause(3)
			e.mustHave(tag, 0, 2)
			e.same(before)
			e.argo("promote", name)
			e.awaitRest(tag)
		})
	}
}

// editInvalid edits the workload and returns the revision that the plugin then notes on the Rollout.
func (e *env) editInvalid(tag string) string {
	e.T.Helper()
	before := e.get(e.T.Context()).Annotations[argo.AnnotationCanary]
	e.edit(tag)
	noted := ""
	e.await("the plugin notes the template "+tag, func(r *v1alpha1.Rollout) bool {
		noted = r.Annotations[argo.AnnotationCanary]
		return noted != before
	})
	return noted
}

// awaitInvalid waits until Argo reports that the present spec is invalid, with a template that stands for this revision unless it is "".
func (e *env) awaitInvalid(revision string) {
	e.T.Helper()
	e.await("the Rollout is invalid, its template of revision "+revision, func(r *v1alpha1.Rollout) bool {
		if revision != "" && stands(r) != revision {
			return false
		}
		for _, c := range r.Status.Conditions {
			if c.Type == v1alpha1.InvalidSpec {
				return true
			}
		}
		return false
	})
}

// stands returns the workload's revision that the Rollout's template stands for.
func stands(r *v1alpha1.Rollout) string {
	if revision := r.Spec.Template.Annotations[argo.AnnotationRevision]; revision != "" {
		return revision
	}
	return r.Annotations[argo.AnnotationFirst]
}

// stays fails the test if a group of the workload changes while Argo and the plugin reconcile again and again.
func (e *env) stays(before map[string]types.UID) {
	e.T.Helper()
	for i := range 2 {
		e.touched("stays", 1) // Argo takes seconds for each: it backs off from an invalid Rollout
		e.annotateWorkload("example.com/touched", fmt.Sprint(e.reconciles(), "-", i))
		if e.same(before); e.T.Failed() {
			e.T.FailNow()
		}
	}
}

// awaitFirstStep waits for the pause after the first step of a release of the tag, which has touched no group of the workload.
func (e *env) awaitFirstStep(tag string, before map[string]types.UID) {
	e.T.Helper()
	e.awaitPause(1)
	e.mustHave(tag, 0, 1)
	e.same(before)
}
