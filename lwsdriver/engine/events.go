// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/autoscaler"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// eventRecorder records a Kubernetes event on the user's workload when its release enters one of eventReasons' states.
type eventRecorder struct {
	broadcaster events.EventBroadcaster
	recorder    events.EventRecorder
	log         *slog.Logger
}

// lastEvent is what the last event on a workload was about; it is not repeated.
type lastEvent struct {
	uid      types.UID
	release  string
	revision string
	target   string
	state    pb.State
}

func newEventRecorder(core kubernetes.Interface, log *slog.Logger) *eventRecorder {
	b := events.NewBroadcaster(&events.EventSinkImpl{Interface: core.EventsV1()})
	return &eventRecorder{
		broadcaster: b, log: log,
		recorder: b.NewRecorder(scheme.Scheme, "lockstep"),
	}
}

// maxNote is the API server's limit for the note of an event, in bytes.
const maxNote = 1024

// lastEvents is how long to wait for events in flight at shutdown: the broadcaster can't be asked.
const lastEvents = 200 * time.Millisecond

func (r *eventRecorder) run(ctx context.Context) {
	// The last writes before the shutdown have events, too.
	recording, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	if err := r.broadcaster.StartRecordingToSinkWithContext(recording); err != nil {
		r.log.Warn("events are not recorded", slog.Any("error", err))
	}
	<-ctx.Done()
	grace, stop := context.WithTimeout(recording, lastEvents)
	defer stop()
	<-grace.Done()
	r.broadcaster.Shutdown()
}

// eventReasons are the reasons of events by state. Other states are steps towards one of them.
var eventReasons = map[pb.State]string{
	pb.State_STATE_HOLDING:            "ReleasePrepared",
	pb.State_STATE_READY:              "BatchReady",
	pb.State_STATE_PROMOTING:          "Promoting",
	pb.State_STATE_ROLLING_BACK:       "RollingBack",
	pb.State_STATE_COMPLETED:          "ReleaseCompleted",
	pb.State_STATE_ROLLED_BACK:        "ReleaseRolledBack",
	pb.State_STATE_FAILED:             "ReleaseFailed",
	pb.State_STATE_NOTHING_TO_RELEASE: "NothingToRelease",
}

// announce records an event about a decision whose state changed. The first decision after the start about a workload without a
// release gets none, nor does a decision from before the caches of routes and autoscalers were filled.
func (e *Engine) announce(ctx context.Context, s *observe.Snapshot, decision plan.Decision) {
	if s.Record == nil || s.Record.Release == nil {
		return
	}
	if decision.Reason == traffic.ReasonNotSynced || decision.Reason == plan.ReasonAutoscalersNotSynced {
		return
	}
	r := s.Record.Release
	now := lastEvent{uid: s.StableObject.UID, release: r.ID, revision: r.UpdateRevision, state: decision.State}
	if t := s.Target(); t != nil {
		now.target = t.Groups
	}
	// It is remembered even without an event: a later state is compared with this one.
	var before lastEvent
	e.memories.update(s.Key, func(m *memory) { before, m.event = m.event, now })
	isFirst := before == lastEvent{}
	if before == now || isFirst && !plan.InFlight(s.Observation) {
		return
	}
	e.metrics.states.WithLabelValues(stateName(decision.State)).Inc()
	reason, ok := eventReasons[decision.State]
	if !ok {
		return
	}
	kind, level := corev1.EventTypeNormal, slog.LevelInfo
	if decision.State == pb.State_STATE_FAILED {
		kind, level = corev1.EventTypeWarning, slog.LevelWarn
	}
	e.config.Log.Log(ctx, level, decision.Message, slog.String("workload", s.Key.String()), slog.String("release", r.ID),
		slog.String("state", stateName(decision.State)), slog.String("reason", decision.Reason))
	e.events.record(s.StableObject, kind, reason, "release %s%s: %s", r.ID, requestText(r), decision.Message)
}

// requestText says in brackets who requested the release or its end, and why. Empty means unknown.
func requestText(r *record.Release) string {
	by, why := "", ""
	if user := cmp.Or(r.EndedBy, r.StartedBy); user != "" {
		by = " by " + user
	}
	if r.EndMessage != "" {
		why = ": " + r.EndMessage
	}
	if by+why == "" {
		return ""
	}
	return " (requested" + by + why + ")"
}

// announceHandover records the event of a handover, on the object that becomes the workload.
func (e *Engine) announceHandover(s *observe.Snapshot, action plan.Action) {
	a, ok := action.(plan.HandOver)
	if !ok || s.AddedObjects[a.Name] == nil {
		return
	}
	w := s.AddedObjects[a.Name]
	r := a.Record.Release
	// The first decision about the new object would otherwise repeat the state as its own event.
	event := lastEvent{uid: w.UID, release: r.ID, revision: r.UpdateRevision, state: pb.State_STATE_PROMOTING}
	e.memories.update(observe.KeyOf(w), func(m *memory) { m.event = event })
	e.events.record(w, corev1.EventTypeNormal, "Adopted",
		"release %s: %s serves in place of %s, which is being deleted; hosts may still use the name %s", r.ID, a.Name, s.Key.Name, a.Record.Workload)
}

// announceAutoscaler records an event about a change of an autoscaler, on the workload.
func (e *Engine) announceAutoscaler(s *observe.Snapshot, action plan.Action) {
	// The workload was deleted, so there is no object to record an event on.
	if s.StableObject == nil {
		return
	}
	switch a := action.(type) {
	case plan.HoldAutoscaler:
		what := "is held until the release is over"
		if a.Hold == autoscaler.HoldDown {
			what = "is held from removing groups"
		}
		e.events.record(s.StableObject, corev1.EventTypeNormal, "AutoscalerHeld", "%s %s %s", a.Kind, a.Name, what)
	case plan.ReleaseAutoscaler:
		e.events.record(s.StableObject, corev1.EventTypeNormal, "AutoscalerReleased", "%s %s scales again as its user configured it", a.Kind, a.Name)
	}
}

// record records an event on a workload, whose cached object lacks its kind.
func (r *eventRecorder) record(w *lws.LeaderWorkerSet, level, reason, format string, args ...any) {
	on := &corev1.ObjectReference{
		APIVersion: cmp.Or(w.APIVersion, lws.GroupVersion.String()), Kind: cmp.Or(w.Kind, observe.Kind),
		Namespace: w.Namespace, Name: w.Name, UID: w.UID, ResourceVersion: w.ResourceVersion,
	}
	// The note may contain percent signs of a message.
	r.recorder.Eventf(on, nil, level, reason, "Release", "%s", observe.Shorten(fmt.Sprintf(format, args...), maxNote))
}

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
	if now.revision == "" {
		return // LWS has not recorded the template yet
	}
	changed := false
	e.memories.update(s.Key, func(m *memory) {
		switch before := m.unsafe; {
		case now.text != "":
			m.unsafe, changed = now, now != before
		case now.uid != before.uid || now.revision != before.revision:
			m.unsafe = unsafeTemplate{} // while a group is recreated its text may be empty: that is not another template
		}
	})
	if changed {
		e.events.record(s.StableObject, corev1.EventTypeWarning, plan.CodeUnsafeTemplate, "%s", "revision "+now.revision+": "+now.text)
	}
}
