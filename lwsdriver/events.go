// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// announcer tells people, as events on the user's workload, when a release enters a state that they care about.
type announcer struct {
	broadcaster events.EventBroadcaster
	recorder    events.EventRecorder
	log         *slog.Logger

	mu   sync.Mutex
	last map[types.NamespacedName]announced
}

// announced is what was last told of a workload; the same again is not news.
type announced struct {
	uid      types.UID
	release  string
	revision string
	target   string
	state    pb.State
}

func newAnnouncer(core kubernetes.Interface, log *slog.Logger) *announcer {
	b := events.NewBroadcaster(&events.EventSinkImpl{Interface: core.EventsV1()})
	return &announcer{
		broadcaster: b, log: log,
		recorder: b.NewRecorder(scheme.Scheme, "lockstep"),
		last:     map[types.NamespacedName]announced{},
	}
}

// maxNote is how many bytes the note of an event may have; the API server refuses the event otherwise.
const maxNote = 1024

// lastEvents is how long events that are on their way when the driver ends may take. The broadcaster can't be asked.
const lastEvents = 200 * time.Millisecond

func (a *announcer) run(ctx context.Context) {
	recording, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	if err := a.broadcaster.StartRecordingToSinkWithContext(recording); err != nil {
		a.log.Warn("events will be missing", slog.Any("error", err))
	}
	<-ctx.Done()
	grace, stop := context.WithTimeout(recording, lastEvents)
	defer stop()
	<-grace.Done()
	a.broadcaster.Shutdown()
}

// news are the states worth an event; the value is its reason. Others are steps on the way to one of them.
var news = map[pb.State]string{
	pb.State_STATE_HOLDING:            "ReleasePrepared",
	pb.State_STATE_READY:              "BatchReady",
	pb.State_STATE_PROMOTING:          "Promoting",
	pb.State_STATE_ROLLING_BACK:       "RollingBack",
	pb.State_STATE_COMPLETED:          "ReleaseCompleted",
	pb.State_STATE_ROLLED_BACK:        "ReleaseRolledBack",
	pb.State_STATE_FAILED:             "ReleaseFailed",
	pb.State_STATE_NOTHING_TO_RELEASE: "NothingToRelease",
}

// announce tells of a decision if its state is news. The first look at a workload that is not being released, after
// the driver started, is none; nor is one at a time when nobody can tell yet how the requests stand.
func (d *Driver) announce(s *seen, decision plan.Decision) {
	if s.Record == nil || s.Record.Release == nil || decision.Reason == traffic.ReasonNotSynced ||
		decision.Reason == plan.ReasonAutoscalersNotSynced {
		return
	}
	now := announced{
		uid: s.stable.UID, release: s.Record.Release.ID, revision: s.Record.Release.UpdateRevision, state: decision.State,
	}
	if t := s.Target(); t != nil {
		now.target = t.Groups
	}
	if before, first := d.events.exchange(s.key, now); before == now || (first && !plan.InFlight(s.Observation)) {
		return
	}
	d.metrics.entered(decision.State)
	reason, ok := news[decision.State]
	if !ok {
		return
	}
	kind := corev1.EventTypeNormal
	if decision.State == pb.State_STATE_FAILED {
		kind = corev1.EventTypeWarning
	}
	note := shorten(fmt.Sprintf("release %s: %s", s.Record.Release.ID, decision.Message), maxNote)
	d.events.recorder.Eventf(reference(s.stable), nil, kind, reason, "Release", "%s", note)
}

// forget drops what was told of a workload that is gone.
func (a *announcer) forget(key types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.last, key)
}

// exchange remembers now and returns what was remembered before.
func (a *announcer) exchange(key types.NamespacedName, now announced) (before announced, first bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before, ok := a.last[key]
	a.last[key] = now
	return before, !ok
}
