// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"testing"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// rewriteRecord replaces texts in the record, in pairs, as a newer driver would have written it.
func (w *workload) rewriteRecord(pairs ...string) {
	w.t.Helper()
	value := w.get().Annotations[recordAnnotation]
	for pair := range slices.Chunk(pairs, 2) {
		if !strings.Contains(value, pair[0]) {
			w.t.Fatalf("the record has no %s: %s", pair[0], value)
		}
		value = strings.Replace(value, pair[0], pair[1], 1)
	}
	w.annotate(recordAnnotation, value)
}

// mustKeep fails unless the record has what the newer driver wrote.
func (w *workload) mustKeep(texts ...string) {
	w.t.Helper()
	value := w.get().Annotations[recordAnnotation]
	for _, text := range texts {
		if !strings.Contains(value, text) {
			w.t.Errorf("the record has lost %s: %s", text, value)
		}
	}
}

// A release of a newer driver is not carried on: with another schema, or with a field of the record or policy that this driver does not
// know. It can be aborted in mid-batch, and what the newer driver wrote stays.
//
// Proves: Records of a newer version: only a rollback, which keeps unknown fields.
func TestNewerReleaseIsAborted(t *testing.T) {
	t.Parallel()
	kept := map[string][]string{
		"schema": {`"zone":{"name":"a"}`, `"version":2`, `"shadow":{"percent":5}`},
		"policy": {`"shadow":{"percent":5}`},
		"fields": {`"zone":{"name":"a"}`, `"soak":"1h"`},
	}
	for name, p := range map[string]*pb.ReleasePolicy{"canary": policy("25%", "100%"), "partition": inPlace("25%", "100%")} {
		for of, edit := range map[string][]string{
			"schema": {`{"version":1`, `{"version":2,"zone":{"name":"a"}`, `"policy":{`, `"policy":{"shadow":{"percent":5},`},
			"policy": {`"policy":{`, `"policy":{"shadow":{"percent":5},`},
			"fields": {`{"version":1`, `{"version":1,"zone":{"name":"a"}`, `"id":"r1"`, `"id":"r1","soak":"1h"`},
		} {
			t.Run(name+"/"+of, func(t *testing.T) {
				t.Parallel()
				w := newEnv(t).adopt(model("model", 4, 2))
				before := w.stablePods()
				w.edit(image("v2"))
				w.initialize("r1", p)
				w.upgrade("r1", 0)
				w.awaitState(pb.State_STATE_READY)
				w.rewriteRecord(edit...)
				c := w.awaitState(pb.State_STATE_FAILED)
				if c.GetReason() != "NewerDriver" || !strings.Contains(c.GetMessage(), "lockstep abort") {
					t.Errorf("%s: %s", c.GetReason(), c.GetMessage())
				}
				_, err := w.tryUpgrade("r1", 1, nil)
				mustFail(t, err, pb.ErrorReason_ERROR_REASON_NEWER_DRIVER, "run that driver", "lockstep abort")
				_, err = w.tryFinalize("r1", promote, nil)
				mustFail(t, err, pb.ErrorReason_ERROR_REASON_NEWER_DRIVER, "run that driver")
				if out, code := w.lockstep(w.toDriver("abort", "model", "--force")...); code != 0 {
					t.Fatalf("abort exits with %d: %s", code, out)
				}
				w.awaitState(pb.State_STATE_ROLLED_BACK)
				w.mustBeIdle()
				w.mustRun("v1")
				if name == "canary" {
					w.sameGroups(before)
				}
				w.mustKeep(kept[of]...)
				// No release begins in such a record; Disown removes it.
				_, err = w.tryInitialize("r2", p)
				mustFail(t, err, pb.ErrorReason_ERROR_REASON_NEWER_DRIVER, "disown")
				if out, code := w.lockstep(w.toDriver("disown", "model")...); code != 0 {
					t.Errorf("disown exits with %d: %s", code, out)
				}
			})
		}
	}
}
