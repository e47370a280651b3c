// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"strings"
	"testing"
	"unicode/utf8"

	"k8s.io/client-go/tools/events"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// The API server refuses an event whose note is too long, and it would be lost.
func TestEventNoteIsShortened(t *testing.T) {
	b := newBed(t, lwstest.InPhase(t, record.Progressing))
	recorder := events.NewFakeRecorder(1)
	b.events.recorder = recorder
	b.announce(b.look(), plan.Decision{State: pb.State_STATE_FAILED, Message: strings.Repeat("é", 2000)})
	// The recorder puts type and reason before the note.
	_, note, ok := strings.Cut(<-recorder.Events, "ReleaseFailed ")
	if !ok || len(note) > maxNote || !utf8.ValidString(note) || !strings.HasPrefix(note, "release r1: éé") {
		t.Errorf("the note has %d bytes: %q", len(note), note)
	}
}

// What a driver sees before it has read the routes is no news: each start would tell of every release that ever ended.
func TestNoEventBeforeCachesAreFilled(t *testing.T) {
	b := newRoutedBed(t, lwstest.RoutedPhase(t, record.CleaningUp, nil), 0)
	s := b.look()
	d := next(t, s)
	if d.Reason != traffic.ReasonNotSynced {
		t.Fatalf("%+v", d)
	}
	b.announce(s, d)
	if len(b.events.last) > 0 {
		t.Errorf("remembered %v", b.events.last)
	}
}
