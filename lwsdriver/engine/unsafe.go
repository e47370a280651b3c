// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
)

// unsafeTemplate is what the last event about a template that the hold does not cover was about.
type unsafeTemplate struct {
	uid            types.UID
	revision, text string
}

// announceUnsafe records a warning once when a template waits whose changes the hold does not cover.
func (e *Engine) announceUnsafe(s *observe.Snapshot) {
	if s.StableObject == nil || s.Record == nil {
		return
	}
	now := unsafeTemplate{uid: s.StableObject.UID, revision: s.Stable.Revision, text: plan.UnsafeText(s.Observation)}
	if now.revision == "" || !e.events.changesUnsafe(s.Key, now) {
		return
	}
	e.events.recorder.Eventf(reference(s.StableObject), nil, corev1.EventTypeWarning, plan.CodeUnsafeTemplate, "Release",
		"%s", observe.Shorten("revision "+now.revision+": "+now.text, maxNote))
}

// changesUnsafe remembers now, and reports whether it is worth an event. While a group is recreated the text may be empty: that
// does not count as another template.
func (r *eventRecorder) changesUnsafe(key types.NamespacedName, now unsafeTemplate) (changed bool) {
	r.unsafe.update(key, func(before unsafeTemplate) unsafeTemplate {
		switch {
		case now == before, now.text == "" && now.uid == before.uid && now.revision == before.revision:
			return before
		case now.text == "":
			return unsafeTemplate{}
		}
		changed = true
		return now
	})
	return changed
}
