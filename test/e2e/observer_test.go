// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// observer records the watch events of a namespace: each state of each LeaderWorkerSet, pod and Ingress. Resource versions are
// one counter for all kinds, so sorting by them restores the order of the changes across the streams.
type observer struct {
	env    *env
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu     sync.Mutex
	events []clusterEvent
	waived map[rule]bool
}

// clusterEvent is one change: the object's state from this version on, or its deletion.
type clusterEvent struct {
	version uint64
	object  runtime.Object // *lws.LeaderWorkerSet, *corev1.Pod or *networkingv1.Ingress
	deleted bool
}

// rule is one of the safety rules. A test that violates one itself can waive it.
type rule string

// observe starts recording. The namespace must be empty.
func observe(e *env) *observer {
	ctx, cancel := context.WithCancel(context.Background())
	o := &observer{env: e, cancel: cancel, waived: map[rule]bool{}}
	pods := e.kube.CoreV1().Pods(e.namespace)
	sets := e.lws.LeaderworkersetV1().LeaderWorkerSets(e.namespace)
	o.wait.Go(func() {
		o.follow(ctx,
			func(l metav1.ListOptions) (runtime.Object, error) { return pods.List(ctx, l) },
			func(l metav1.ListOptions) (watch.Interface, error) { return pods.Watch(ctx, l) })
	})
	ingresses := e.kube.NetworkingV1().Ingresses(e.namespace)
	o.wait.Go(func() {
		o.follow(ctx,
			func(l metav1.ListOptions) (runtime.Object, error) { return ingresses.List(ctx, l) },
			func(l metav1.ListOptions) (watch.Interface, error) { return ingresses.Watch(ctx, l) })
	})
	o.wait.Go(func() {
		o.follow(ctx,
			func(l metav1.ListOptions) (runtime.Object, error) { return sets.List(ctx, l) },
			func(l metav1.ListOptions) (watch.Interface, error) { return sets.Watch(ctx, l) })
	})
	return o
}

// waive disables rules that the test itself violates.
func (o *observer) waive(rules ...rule) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range rules {
		o.waived[r] = true
	}
}

// follow lists and watches until ctx ends. A broken stream resumes at its last version. If the API server no longer has that
// version, a list fills the gap, and changes within it are not observed.
func (o *observer) follow(ctx context.Context, list func(metav1.ListOptions) (runtime.Object, error), open func(metav1.ListOptions) (watch.Interface, error)) {
	version := ""
	known := map[string]runtime.Object{}
	for ctx.Err() == nil {
		if version == "" {
			all, err := list(metav1.ListOptions{})
			if err != nil {
				pause(ctx)
				continue
			}
			version = o.fill(all, known)
		}
		w, err := open(metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true})
		if err != nil {
			if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
				version = ""
			}
			pause(ctx)
			continue
		}
		for event := range w.ResultChan() {
			if event.Type == watch.Error {
				version = ""
				break
			}
			object, err := meta.Accessor(event.Object)
			if err != nil {
				continue
			}
			version = object.GetResourceVersion()
			if event.Type == watch.Bookmark {
				continue
			}
			known[object.GetName()] = event.Object
			if event.Type == watch.Deleted {
				delete(known, object.GetName())
			}
			o.add(event.Object, event.Type == watch.Deleted)
		}
		w.Stop()
	}
}

// fill records the objects of a list, and the deletion of known objects that it lacks.
func (o *observer) fill(all runtime.Object, known map[string]runtime.Object) string {
	items, err := meta.ExtractList(all)
	listed, errList := meta.ListAccessor(all)
	if err != nil || errList != nil {
		return ""
	}
	at, _ := strconv.ParseUint(listed.GetResourceVersion(), 10, 64)
	now := map[string]bool{}
	for _, item := range items {
		object, err := meta.Accessor(item)
		if err != nil {
			continue
		}
		now[object.GetName()] = true
		known[object.GetName()] = item
		o.add(item, false)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for name, object := range known {
		if !now[name] {
			delete(known, name)
			o.events = append(o.events, clusterEvent{at, object, true})
		}
	}
	return listed.GetResourceVersion()
}

func (o *observer) add(object runtime.Object, deleted bool) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return
	}
	version, err := strconv.ParseUint(accessor.GetResourceVersion(), 10, 64)
	if err != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, clusterEvent{version, object, deleted})
}

// finish stops recording and checks the rules after every event. Violations fail the test.
func (o *observer) finish() {
	o.cancel()
	o.wait.Wait()
	slices.SortStableFunc(o.events, func(a, b clusterEvent) int { return cmp.Compare(a.version, b.version) })
	r := newReplay(o.waived)
	for _, h := range o.events {
		r.step(h)
	}
	figures.events.Add(int64(len(o.events)))
	figures.checks.Add(int64(r.checks))
	figures.dips.Add(int64(r.dips))
	figures.completed.Add(int64(r.completed))
	figures.rolledBack.Add(int64(r.rolledBack))
	figures.violations.Add(int64(len(r.violations)))
	if len(r.violations) > 0 {
		o.env.t.Logf("history:\n%s", r.history())
	}
	for _, v := range r.violations[:min(len(r.violations), 10)] {
		o.env.t.Errorf("rule violated: %s", v)
	}
}

func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(100 * time.Millisecond):
	}
}

var (
	_ runtime.Object = (*lws.LeaderWorkerSet)(nil)
	_ runtime.Object = (*corev1.Pod)(nil)
)
