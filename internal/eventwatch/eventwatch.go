// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package eventwatch follows the Kubernetes events of LeaderWorkerSets, for `lockstep watch`.
package eventwatch

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/lockstep-rollouts/lockstep/internal/sleep"
)

// Receiver receives events. Its functions are called from one goroutine, and all of them are required.
type Receiver struct {
	// Event is called for each existing event, and then for each change. A deleted event has expired.
	Event func(event *corev1.Event, deleted bool)
	// Lost is called when the API server does not answer, and for each attempt that fails.
	Lost func(error)
	// Found is called when it answers.
	Found func()
}

// Follow lists events once and then watches them, also across broken watches. It returns nil when ctx ends, and an error
// when the API server denies access. An empty namespace means all namespaces.
func Follow(ctx context.Context, client typedcorev1.EventsGetter, namespace string, to Receiver) error {
	f := follower{client: client.Events(namespace), to: to}
	delay := time.Duration(0)
	for {
		err := f.once(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // The end of ctx is how a caller stops.
		case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
			return err
		case err == nil:
			// API servers close watches from time to time.
			delay = 0
		case apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
			f.version = ""
		default:
			to.Lost(err)
			// Another API server may be reached next, which does not have that version.
			f.version = ""
		}
		delay = min(max(2*delay, firstDelay), longestDelay)
		sleep.For(ctx, delay)
	}
}

const (
	firstDelay   = 200 * time.Millisecond
	longestDelay = 5 * time.Second
	// pageSize bounds one answer of the list.
	pageSize = 500
)

// ofSets selects the events of LeaderWorkerSets.
const ofSets = "involvedObject.kind=LeaderWorkerSet"

type follower struct {
	client typedcorev1.EventInterface
	to     Receiver
	// version is where the next watch starts. Empty: list first.
	version string
}

// once lists if there is no version, and watches until the API server closes the watch, which is no error.
func (f *follower) once(ctx context.Context) error {
	if f.version == "" {
		if err := f.list(ctx); err != nil {
			return err
		}
	}
	w, err := f.client.Watch(ctx, metav1.ListOptions{
		FieldSelector: ofSets, ResourceVersion: f.version, AllowWatchBookmarks: true,
	})
	if err != nil {
		return fmt.Errorf("watch events: %w", err)
	}
	defer w.Stop()
	f.to.Found()
	for change := range w.ResultChan() {
		if change.Type == watch.Error {
			return fmt.Errorf("watch events: %w", apierrors.FromObject(change.Object))
		}
		if event, ok := change.Object.(*corev1.Event); ok {
			f.version = event.ResourceVersion
			if change.Type != watch.Bookmark {
				f.to.Event(event, change.Type == watch.Deleted)
			}
		}
	}
	return nil
}

func (f *follower) list(ctx context.Context) error {
	for next := ""; ; {
		page, err := f.client.List(ctx, metav1.ListOptions{FieldSelector: ofSets, Limit: pageSize, Continue: next})
		if err != nil {
			return fmt.Errorf("list events: %w", err)
		}
		for i := range page.Items {
			f.to.Event(&page.Items[i], false)
		}
		if next = page.Continue; next == "" {
			f.version = page.ResourceVersion
			return nil
		}
	}
}

// At returns when an event happened last. Which field has that time depends on the event's writer.
func At(e *corev1.Event) time.Time {
	at := e.CreationTimestamp.Time
	for _, t := range []time.Time{e.FirstTimestamp.Time, e.EventTime.Time, e.LastTimestamp.Time} {
		if t.After(at) {
			at = t
		}
	}
	if e.Series != nil && e.Series.LastObservedTime.After(at) {
		at = e.Series.LastObservedTime.Time
	}
	return at
}
