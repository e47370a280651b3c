// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"strings"
	"testing"
	"unicode/utf8"

	"k8s.io/client-go/tools/events"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func TestShorten(t *testing.T) {
	for _, tt := range []struct {
		name, in, want string
		limit          int
	}{
		{"short", "ready", "ready", 5},
		{"long", "not ready", "not…", 6},
		{"between runes", "éééé", "é…", 6},
		{"not cut in a rune", "aé", "aé", 3},
		{"no text", "a\xffb", "a\uFFFDb", 10},
		{"empty", "", "", 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Shorten(tt.in, tt.limit)
			if got != tt.want || len(got) > tt.limit || !utf8.ValidString(got) {
				t.Errorf("%q, want %q in %d bytes", got, tt.want, tt.limit)
			}
		})
	}
}

// The API server refuses an event whose note is too long, and nobody would hear of it.
func TestNoteFitsAnEvent(t *testing.T) {
	b := newBed(t, inPhase(t, record.Progressing))
	recorder := events.NewFakeRecorder(1)
	b.engine.events.recorder = recorder
	b.engine.announce(b.look(), plan.Decision{State: pb.State_STATE_FAILED, Message: strings.Repeat("é", 2000)})
	// The recorder puts type and reason before the note.
	_, note, ok := strings.Cut(<-recorder.Events, "ReleaseFailed ")
	if !ok || len(note) > maxNote || !utf8.ValidString(note) || !strings.HasPrefix(note, "release r1: éé") {
		t.Errorf("the note has %d bytes: %q", len(note), note)
	}
}

func TestPodMessageIsShort(t *testing.T) {
	v := view(t, testPod("vllm-1", waiting("ImagePullBackOff", strings.Repeat("é\xff", 1000))))
	if len(v.message) > maxPodMessage || !utf8.ValidString(v.message) || !strings.HasPrefix(v.message, "container server: ImagePullBackOff") {
		t.Errorf("the message has %d bytes: %q", len(v.message), v.message)
	}
}
