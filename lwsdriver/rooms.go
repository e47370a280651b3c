// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/capacity"
)

const (
	// roomPeriod is how long the free capacity of the nodes may be old. Pods start and end all the time, so it is an estimate anyway.
	roomPeriod = 30 * time.Second
	// roomTimeout bounds the lists of all nodes and pods.
	roomTimeout = 30 * time.Second
	// roomPage is how many objects the driver holds of them at a time.
	roomPage = 500
)

// rooms reads the free capacity of the cluster's nodes for all callers together: it costs lists of all nodes and pods.
type rooms struct {
	mu      sync.Mutex
	room    capacity.Room
	err     error
	readAt  time.Time
	reading chan struct{} // closed when the lists that are under way have ended; nil: none are
}

// read returns the free capacity, waiting for it until ctx ends.
func (r *rooms) read(ctx context.Context, core kubernetes.Interface) (capacity.Room, error) {
	r.mu.Lock()
	if r.reading == nil && (r.err != nil || time.Since(r.readAt) > roomPeriod) {
		r.reading = make(chan struct{})
		go r.list(context.WithoutCancel(ctx), core, r.reading) // also for those who wait beside this caller
	}
	reading := r.reading
	r.mu.Unlock()
	if reading != nil {
		select {
		case <-reading:
		case <-ctx.Done():
			return capacity.Room{}, fmt.Errorf("read nodes and pods: %w", ctx.Err())
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.room, r.err
}

func (r *rooms) list(ctx context.Context, core kubernetes.Interface, done chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, roomTimeout)
	defer cancel()
	var failed error
	nodes := pages[*corev1.Node](ctx, &failed, "nodes", "", func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return core.CoreV1().Nodes().List(ctx, o)
	})
	placed := fmt.Sprintf("spec.nodeName!=,status.phase!=%s,status.phase!=%s", corev1.PodSucceeded, corev1.PodFailed)
	pods := pages[*corev1.Pod](ctx, &failed, "pods of all namespaces", placed, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return core.CoreV1().Pods(metav1.NamespaceAll).List(ctx, o)
	})
	room := capacity.RoomOf(nodes, pods)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.room, r.err, r.readAt, r.reading = room, failed, time.Now(), nil
	close(done)
}

// pages lists objects page by page. An error ends it, and is kept in failed.
func pages[T runtime.Object](ctx context.Context, failed *error, what, fields string, list pager.ListPageFunc) iter.Seq[T] {
	return func(yield func(T) bool) {
		if *failed != nil {
			return
		}
		p := pager.New(list)
		p.PageSize, p.PageBufferSize = roomPage, 1
		err := p.EachListItem(ctx, metav1.ListOptions{FieldSelector: fields}, func(o runtime.Object) error {
			if t, ok := o.(T); ok {
				yield(t)
			}
			return nil
		})
		if err != nil {
			*failed = withRemedy(fmt.Errorf("list %s: %w", what, err))
		}
	}
}
