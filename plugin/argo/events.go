// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"context"
	"log/slog"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
)

// maxNote is the most bytes that the API server accepts as the note of an event.
const maxNote = 1024

// EventRecorder writes events on Rollouts.
type EventRecorder struct {
	broadcaster events.EventBroadcaster
	recorder    events.EventRecorder
	logger      *slog.Logger
}

var _ Recorder = (*EventRecorder)(nil)

// NewEventRecorder returns a recorder that writes events while Run runs.
func NewEventRecorder(core kubernetes.Interface, logger *slog.Logger) *EventRecorder {
	b := events.NewBroadcaster(&events.EventSinkImpl{Interface: core.EventsV1()})
	return &EventRecorder{broadcaster: b, recorder: b.NewRecorder(scheme.Scheme, "lockstep-argo"), logger: logger}
}

// Run writes events until ctx has ended.
func (r *EventRecorder) Run(ctx context.Context) {
	if err := r.broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		r.logger.Warn("events will be missing", "error", err)
	}
	<-ctx.Done()
	r.broadcaster.Shutdown()
}

// Warn writes a warning.
func (r *EventRecorder) Warn(ro *v1alpha1.Rollout, reason, message string) {
	if len(message) > maxNote {
		message = message[:maxNote]
	}
	about := &corev1.ObjectReference{
		APIVersion: "argoproj.io/v1alpha1", Kind: "Rollout",
		Namespace: ro.Namespace, Name: ro.Name, UID: ro.UID, ResourceVersion: ro.ResourceVersion,
	}
	r.recorder.Eventf(about, nil, corev1.EventTypeWarning, reason, "Reconcile", "%s", message)
}
