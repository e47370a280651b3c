// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/fakes"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// The API server refuses an event whose note is too long, and it would be lost.
func TestEventNoteIsShortened(t *testing.T) {
	b := newFixture(t, lwstest.InPhase(t, record.Progressing))
	recorder := events.NewFakeRecorder(1)
	b.events.recorder = recorder
	b.announce(t.Context(), b.look(), plan.Decision{State: pb.State_STATE_FAILED, Message: strings.Repeat("é", 2000)})
	// The recorder puts type and reason before the note.
	_, note, ok := strings.Cut(<-recorder.Events, "ReleaseFailed ")
	assert.True(t, ok && len(note) <= maxNote && utf8.ValidString(note) && strings.HasPrefix(note, "release r1: éé"),
		"the note has %d bytes: %q", len(note), note)
}

// A failed release is a warning in the log, once.
func TestFailureIsLogged(t *testing.T) {
	b := newFixture(t, lwstest.InPhase(t, record.Progressing))
	var log strings.Builder
	b.config.Log = slog.New(slog.NewTextHandler(&log, nil))
	for range 2 {
		b.announce(t.Context(), b.look(), plan.Decision{State: pb.State_STATE_FAILED, Reason: plan.ReasonDeadline, Message: "no progress"})
	}
	line := `level=WARN msg="no progress" workload=default/vllm release=r1 state=FAILED reason=ProgressDeadlineExceeded`
	if strings.Count(log.String(), line) != 1 {
		t.Errorf("want once %s:\n%s", line, log.String())
	}
}

// What a driver sees before it has read the routes is no news: each start would tell of every release that ever ended.
func TestNoEventBeforeCachesAreFilled(t *testing.T) {
	b := newRoutedFixture(t, lwstest.RoutedPhase(t, record.CleaningUp, nil), 0)
	s := b.look()
	d := lwstest.Decide(t, s.Observation)
	require.Equal(t, traffic.ReasonNotSynced, d.Reason, d)
	b.announce(t.Context(), s, d)
	assert.Equal(t, lastEvent{}, b.memories.get(s.Key).event, "remembered")
}

// A template that the hold does not cover is announced once, also if no group of the old one exists for a moment.
func TestUnsafeTemplateEvent(t *testing.T) {
	b := newFixture(t, lwstest.WithRecord(t, lwstest.StableWorkload(), record.Record{Saved: record.Native(record.Hold())}))
	recorder := events.NewFakeRecorder(10)
	b.events.recorder = recorder
	s := b.look()
	for _, step := range []struct {
		name, revision string
		size           string // of the template in the spec; empty: no group of another template exists
		event          bool
	}{
		{"all groups run the template", "a", "", false},
		{"LWS has not recorded the template", "", "4", false},
		{"the template waits", "b", "4", true},
		{"a group is deleted", "b", "", false},
		{"and recreated", "b", "4", false},
		{"another size", "c", "8", true},
		{"the template is restored", "a", "", false},
		{"and changed again", "c", "8", true},
	} {
		s.Stable.Revision, s.UnsafeChanges = step.revision, nil
		if step.size != "" {
			s.UnsafeChanges = []plan.TemplateChange{{Field: plan.FieldSize, Old: "2", New: step.size, Effect: "it grows"}}
		}
		b.announceUnsafe(s)
		select {
		case got := <-recorder.Events:
			want := "Warning UnsafeTemplateChange revision " + step.revision
			assert.True(t, step.event && strings.HasPrefix(got, want) && strings.Contains(got, "to "+step.size), "%s: %q", step.name, got)
		default:
			assert.False(t, step.event, "%s: no event", step.name)
		}
	}
}

// A driver that may not write the history does everything else, says what it lacks, and does not try all the time.
func TestHistoryForbidden(t *testing.T) {
	w := lwstest.WithRecord(t, lwstest.StableWorkload(), record.Record{UID: "stable", Saved: record.Native(record.Hold())})
	b := newFixtureOn(t, fake.NewClientset(lwstest.Revision(t, w, "new")), lwstest.NoRoutes(), w)
	fakes.React(&b.Core.Fake, "create", "controllerrevisions", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(appsv1.Resource("controllerrevisions"), "x", fmt.Errorf(`User "u" cannot create resource`))
	})
	s := &observe.Snapshot{Observation: plan.Observation{Key: lwstest.VLLM}, StableObject: w}
	s.Now, s.Stable.Revision = lwstest.Noon, "new"
	action := plan.SaveRevision{Entry: plan.Entry{Revision: "new", Number: 1}}
	_, err := b.recordHistory(t.Context(), s, action)
	assert.NoError(t, err, "it blocks the release")
	assert.Error(t, b.HistoryError(lwstest.VLLM), "the error is not kept")
	s = b.look()
	assert.True(t, s.HistoryUnread && s.Recheck == historyRetry, "the planner would ask again: %+v", s.Observation)
	b.forget(lwstest.VLLM)
	err = b.HistoryError(lwstest.VLLM)
	assert.NoError(t, err, "%v is remembered of a deleted workload", err)
}
