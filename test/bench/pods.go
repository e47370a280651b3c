// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/test/grouptags"
)

// pods is an administrator's watch of the workloads' pods. It decides for both sides when a group is done, not LWS's status or
// the driver's response.
type pods struct {
	mu      sync.Mutex
	all     corelisters.PodNamespaceLister
	changed chan struct{}
}

// watchPods watches until ctx ends.
func watchPods(ctx context.Context, kube kubernetes.Interface) (*pods, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(namespace))
	watched := factory.Core().V1().Pods()
	p := &pods{all: watched.Lister().Pods(namespace), changed: make(chan struct{})}
	_, err := watched.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { p.notify() },
		UpdateFunc: func(any, any) { p.notify() },
		DeleteFunc: func(any) { p.notify() },
	})
	if err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), watched.Informer().HasSynced) {
		return nil, fmt.Errorf("watch pods: %w", ctx.Err())
	}
	return p, nil
}

func (p *pods) notify() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
}

// serves reports whether a workload has exactly n pods, all of them ready and with that image.
func (p *pods) serves(set, image string, n int) bool {
	return p.serveAll(map[string]string{set: image}, n)
}

// serveAll reports whether each of these workloads has exactly n pods, all of them ready and with its image.
func (p *pods) serveAll(images map[string]string, n int) bool {
	found := 0
	all, _ := p.all.List(labels.Everything()) // a cache returns no error
	for _, one := range all {
		image, ok := images[one.Labels[lws.SetNameLabelKey]]
		if !ok {
			continue
		}
		if !grouptags.Ready(one) || one.Spec.Containers[0].Image != image {
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
