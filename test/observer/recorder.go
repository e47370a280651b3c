// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observer

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

// Event is one change: the object's state from this version on, or its deletion.
type Event struct {
	Version uint64
	Object  *unstructured.Unstructured
	Deleted bool
}

// Observer records the watch events of a namespace. Resource versions are one counter for all kinds, so sorting by them restores the order of
// the changes across the streams.
type Observer struct {
	cancel context.CancelFunc
	wait   sync.WaitGroup
	hosts  []string

	mu     sync.Mutex
	events []Event
	waived bool
}

// Start records until the test ends, and then fails it for each violation. The namespace must be empty. Kinds that the API server does not
// serve are left out; more are recorded, and not judged.
func Start(t testing.TB, client dynamic.Interface, namespace string, more ...schema.GroupVersionResource) *Observer {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	o := &Observer{cancel: cancel}
	for _, kind := range append(slices.Clone(kinds), more...) {
		objects := client.Resource(kind).Namespace(namespace)
		if _, err := objects.List(ctx, metav1.ListOptions{Limit: 1}); apierrors.IsNotFound(err) {
			continue
		}
		if host := hosts[kind]; host != "" {
			o.hosts = append(o.hosts, host)
		}
		o.wait.Go(func() { o.follow(ctx, objects) })
	}
	t.Cleanup(func() {
		events := o.Stop()
		if o.waived {
			return
		}
		for _, violation := range judge(o.hosts, events) {
			t.Errorf("rule violated: %s", violation)
		}
	})
	return o
}

// Waive disables the rule, for a test that violates it itself.
func (o *Observer) Waive() { o.waived = true }

// Stop stops recording, and returns the events in the order of the changes.
func (o *Observer) Stop() []Event {
	o.cancel()
	o.wait.Wait()
	slices.SortStableFunc(o.events, func(a, b Event) int { return cmp.Compare(a.Version, b.Version) })
	return o.events
}

// follow lists and watches until ctx ends. A broken stream resumes at its last version. If the API server no longer has that
// version, a list fills the gap, and changes within it are not observed.
func (o *Observer) follow(ctx context.Context, objects dynamic.ResourceInterface) {
	version, gap := "", true
	known := map[string]*unstructured.Unstructured{}
	for ; ctx.Err() == nil; pause(ctx) {
		if gap {
			all, err := objects.List(ctx, metav1.ListOptions{})
			if err != nil {
				continue
			}
			version, gap = o.fill(all, known, version), false
		}
		w, err := objects.Watch(ctx, metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true})
		if err != nil {
			if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
				gap = true
			}
			continue
		}
		for event := range w.ResultChan() {
			object, ok := event.Object.(*unstructured.Unstructured)
			if event.Type == watch.Error || !ok {
				gap = true
				break
			}
			version = object.GetResourceVersion()
			if event.Type == watch.Bookmark {
				continue
			}
			known[object.GetName()] = object
			if event.Type == watch.Deleted {
				delete(known, object.GetName())
			}
			o.add(version, object, event.Type == watch.Deleted)
		}
		w.Stop()
	}
}

// fill records the objects of a list, and the deletion of known objects that it lacks. That was at some time after the last version
// that was watched: of an object that was being deleted it counts as at once, since others may act on it before the list is made.
func (o *Observer) fill(all *unstructured.UnstructuredList, known map[string]*unstructured.Unstructured, last string) string {
	now := map[string]bool{}
	for i := range all.Items {
		object := &all.Items[i]
		now[object.GetName()], known[object.GetName()] = true, object
		o.add(object.GetResourceVersion(), object, false)
	}
	for name, object := range known {
		if !now[name] {
			delete(known, name)
			version := all.GetResourceVersion()
			if object.GetDeletionTimestamp() != nil && last != "" {
				version = last
			}
			o.add(version, object, true)
		}
	}
	return all.GetResourceVersion()
}

func (o *Observer) add(version string, object *unstructured.Unstructured, deleted bool) {
	at, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return
	}
	object.SetManagedFields(nil)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, Event{at, object, deleted})
}

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(100 * time.Millisecond):
	}
}
