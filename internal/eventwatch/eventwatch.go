// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package eventwatch follows the Kubernetes events about LeaderWorkerSets: for people who watch releases. The driver needs
// none of them.
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
)

// Receiver is told what happens, from one goroutine. All of it is required.
type Receiver struct {
	// Event is called for each event that there is, and then for each change. Deleted ones have expired.
	Event func(event *corev1.Event, deleted bool)
	// Lost is called when the API server does not answer, and for each attempt that fails.
	Lost func(error)
	// Found is called when it answers.
	Found func()
}

// Follow lists events once and then watches, until ctx ends, which is no error, or the API server refuses. A watch that
// breaks is opened again, however long the API server is away. An empty namespace is all of them.
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
			// API servers end watches from time to time.
			delay = 0
		case apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
			f.version = ""
		default:
			to.Lost(err)
			// The API server may be another one when it is back, without that version.
			f.version = ""
		}
		delay = min(max(2*delay, firstDelay), longestDelay)
		rest(ctx, delay)
	}
}

const (
	firstDelay   = 200 * time.Millisecond
	longestDelay = 5 * time.Second
	// pageSize bounds one answer of the list.
	pageSize = 500
)

// ofSets are events about LeaderWorkerSets.
const ofSets = "involvedObject.kind=LeaderWorkerSet"

type follower struct {
	client typedcorev1.EventInterface
	to     Receiver
	// version is what the next watch begins after. Empty: a list comes first.
	version string
}

// once lists if need be, and watches until the API server ends that, which is no error.
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

// At is when an event happened last: whoever wrote it chose one of several fields.
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

// rest waits for d, or less if ctx ends.
func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
