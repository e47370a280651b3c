// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// pods is an administrator's watch of the workloads' pods. It decides for both sides when a group is done, not LWS's status or
// the driver's response.
type pods struct {
	mu      sync.Mutex
	all     map[string]pod
	changed chan struct{}
}

type pod struct {
	set, image  string
	ready, ends bool
}

// watchPods watches until ctx ends.
func watchPods(ctx context.Context, kube kubernetes.Interface) (*pods, error) {
	p := &pods{all: map[string]pod{}, changed: make(chan struct{})}
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().Pods().Informer()
	set := func(obj any) {
		if o, ok := obj.(*corev1.Pod); ok {
			p.set(o)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    set,
		UpdateFunc: func(_, obj any) { set(obj) },
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if o, ok := obj.(*corev1.Pod); ok {
				p.remove(o.Name)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil, fmt.Errorf("watch pods: %w", ctx.Err())
	}
	return p, nil
}

func (p *pods) set(o *corev1.Pod) {
	now := pod{set: cmp.Or(o.Labels[lws.SetNameLabelKey], o.Labels["app"]), image: o.Spec.Containers[0].Image, ends: o.DeletionTimestamp != nil}
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.PodReady {
			now.ready = c.Status == corev1.ConditionTrue
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all[o.Name] = now
	p.notify()
}

func (p *pods) remove(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.all, name)
	p.notify()
}

func (p *pods) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// serves reports whether a workload has exactly n pods, all of them ready and with that image.
func (p *pods) serves(set, image string, n int) bool {
	return p.serveAll(map[string]string{set: image}, n)
}

// gone reports whether a workload has no pods.
func (p *pods) gone(set string) bool { return p.serves(set, "", 0) }

// now reports whether a condition holds.
func (p *pods) now(holds func() bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return holds()
}

// serveAll reports whether each of these workloads has exactly n pods, all of them ready and with its image.
func (p *pods) serveAll(images map[string]string, n int) bool {
	found := 0
	for _, one := range p.all {
		image, ok := images[one.set]
		if !ok {
			continue
		}
		if !one.ready || one.ends || one.image != image {
			return false
		}
		found++
	}
	return found == n*len(images)
}

// until returns the moment at which a condition holds.
func (p *pods) until(ctx context.Context, what string, holds func() bool) (time.Time, error) {
	return p.within(ctx, patience, what, holds)
}

// within is until with another limit.
func (p *pods) within(ctx context.Context, limit time.Duration, what string, holds func() bool) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		p.mu.Lock()
		done, changed := holds(), p.changed
		p.mu.Unlock()
		if done {
			return time.Now(), nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("wait until %s: %w", what, ctx.Err())
		}
	}
}
