// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/test/observer"
)

// rules checks the safety rules on the events of a namespace, which [observer.Observer] records: each state of each LeaderWorkerSet, pod,
// Service, Ingress and DisaggregatedSet.
type rules struct {
	*observer.Observer
	env *env

	mu     sync.Mutex
	waived map[rule]bool
}

// clusterEvent is one change: the object's state from this version on, or its deletion.
type clusterEvent struct {
	version uint64
	object  runtime.Object // as typed returns it
	deleted bool
}

// rule is one of the safety rules. A test that violates one itself can waive it.
type rule string

// observe starts recording. The namespace must be empty.
func observe(e *env) *rules {
	return &rules{
		Observer: observer.Start(e.t, e.dynamic, e.namespace,
			networkingv1.SchemeGroupVersion.WithResource("ingresses"), corev1.SchemeGroupVersion.WithResource("services")),
		env: e, waived: map[rule]bool{},
	}
}

// waive disables rules that the test itself violates. Without the hold LWS rolls out what nothing asked for.
func (o *rules) waive(rules ...rule) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range rules {
		o.waived[r] = true
	}
	if o.waived[ruleHold] {
		o.Waive()
	}
}

// finish stops recording and checks the rules after every event. Violations fail the test.
func (o *rules) finish() {
	events, r := o.Stop(), newReplay(o.waived)
	for _, e := range events {
		object := typed(e.Object.GetKind())
		if object == nil {
			continue
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(e.Object.Object, object); err != nil {
			o.env.t.Errorf("decode %s %s: %v", e.Object.GetKind(), e.Object.GetName(), err)
			continue
		}
		r.step(clusterEvent{e.Version, object, e.Deleted})
	}
	if len(r.violations) > 0 {
		o.env.t.Logf("history:\n%s", r.history())
	}
	for _, v := range r.violations[:min(len(r.violations), 10)] {
		o.env.t.Errorf("rule violated: %s", v)
	}
}

// typed returns an empty object of a kind that the rules read, or nil.
func typed(kind string) runtime.Object {
	switch kind {
	case "LeaderWorkerSet":
		return &lws.LeaderWorkerSet{}
	case "Pod":
		return &corev1.Pod{}
	case "Ingress":
		return &networkingv1.Ingress{}
	case "Service":
		return &corev1.Service{}
	case "DisaggregatedSet":
		return &disaggregated.DisaggregatedSet{}
	default:
		return nil
	}
}
