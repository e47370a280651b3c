// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
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
	reading singleflight.Group

	mu     sync.Mutex
	room   capacity.Room
	readAt time.Time
}

// read returns the free capacity, waiting for it until ctx ends.
func (r *rooms) read(ctx context.Context, core kubernetes.Interface) (capacity.Room, error) {
	r.mu.Lock()
	room, fresh := r.room, time.Since(r.readAt) <= roomPeriod
	r.mu.Unlock()
	if fresh {
		return room, nil
	}
	read := r.reading.DoChan("", func() (any, error) { return r.list(context.WithoutCancel(ctx), core) })
	select {
	case result := <-read:
		room, _ := result.Val.(capacity.Room)
		return room, result.Err
	case <-ctx.Done():
		return capacity.Room{}, fmt.Errorf("read nodes and pods: %w", ctx.Err())
	}
}

func (r *rooms) list(ctx context.Context, core kubernetes.Interface) (capacity.Room, error) {
	ctx, cancel := context.WithTimeout(ctx, roomTimeout)
	defer cancel()
	var room capacity.Room
	if err := each(ctx, "nodes", "", room.AddNode, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return core.CoreV1().Nodes().List(ctx, o)
	}); err != nil {
		return room, err
	}
	placed := fmt.Sprintf("spec.nodeName!=,status.phase!=%s,status.phase!=%s", corev1.PodSucceeded, corev1.PodFailed)
	if err := each(ctx, "pods of all namespaces", placed, room.AddPod, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return core.CoreV1().Pods(metav1.NamespaceAll).List(ctx, o)
	}); err != nil {
		return room, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.room, r.readAt = room, time.Now()
	return room, nil
}

// each lists objects page by page.
func each[T runtime.Object](ctx context.Context, what, fields string, do func(T), list pager.ListPageFunc) error {
	p := pager.New(list)
	p.PageSize, p.PageBufferSize = roomPage, 1
	err := p.EachListItem(ctx, metav1.ListOptions{FieldSelector: fields}, func(o runtime.Object) error {
		if t, ok := o.(T); ok {
			do(t)
		}
		return nil
	})
	if err != nil {
		return withRemedy(fmt.Errorf("list %s: %w", what, err))
	}
	return nil
}
