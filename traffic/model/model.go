// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package model is a model of what surrounds the traffic of one release: an API server that takes its writes, the
// endpoints of its Services, and a gateway. It decides nothing: what to write is decided by package traffic, from the
// objects that the model keeps. So a forecast, and a test of many states, run the code that releases run.
//
//	o := model.New(setup)
//	o, err = o.Next(setup, desired)      // the next write, as an API server applies it
//	o = o.Accept().Follow(pods)          // the gateway and the endpoints catch up
//	view := traffic.Look(setup, desired, o.World)
package model

import (
	"encoding/json"
	"fmt"
	"maps"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/traffic"
)

// Objects are the Services, routes and pools of a release. They are never modified: each change returns others.
type Objects struct {
	traffic.World
}

// Pod is a leader pod.
type Pod struct {
	Name   string
	Labels map[string]string
	Ready  bool
}

// gateway is the parent of every route.
const gateway = "gateway"

// New returns the objects before a release: a Service, and a pool if the policy has one, that select leaders by the labels of the workload's
// template, and the routes of the policy with one rule, accepted by their gateway. Ingresses are not modelled.
func New(s traffic.Setup) Objects {
	o := Objects{traffic.World{Routes: map[traffic.Key]*unstructured.Unstructured{}}}
	o.Stable = &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: traffic.KindService},
		ObjectMeta: metav1.ObjectMeta{Name: s.Policy.StableService, Namespace: s.Namespace},
		Spec: corev1.ServiceSpec{
			Selector: maps.Clone(s.Leader), Ports: []corev1.ServicePort{{Name: "http", Port: 80}},
		},
	}
	delete(o.Stable.Spec.Selector, lws.SetNameLabelKey)
	delete(o.Stable.Spec.Selector, disaggregated.RevisionLabelKey)
	backend := map[string]any{"name": s.Policy.StableService, "port": int64(80), "weight": int64(1)}
	if pool := s.Policy.Pool; pool != nil {
		backend = map[string]any{"group": traffic.InferenceGroup, "kind": traffic.KindInferencePool, "name": pool.Stable, "weight": int64(1)}
		o.StablePool = newPool(pool.Stable, o.Stable.Spec.Selector)
	}
	for _, key := range s.Policy.Routes {
		r := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
			"parentRefs": []any{map[string]any{"name": gateway}},
			"rules":      []any{map[string]any{"backendRefs": []any{backend}}},
		}}}
		r.SetAPIVersion(traffic.GatewayGroup + "/" + traffic.GatewayVersion)
		r.SetKind(key.Kind)
		r.SetNamespace(s.Namespace)
		r.SetName(key.Name)
		o.Routes[key] = r
	}
	return o.Accept()
}

// newPool returns a pool of a user.
func newPool(name string, selector map[string]string) *unstructured.Unstructured {
	labels := map[string]any{}
	for k, v := range selector {
		labels[k] = v
	}
	pool := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"selector":          map[string]any{"matchLabels": labels},
		"endpointPickerRef": map[string]any{"name": name + "-picker", "port": map[string]any{"number": int64(9002)}},
	}}}
	pool.SetName(name)
	return pool
}

// Next makes the next write towards what is desired. Without one that is due, or with an error, the objects are unchanged.
func (o Objects) Next(s traffic.Setup, d traffic.Desired) (Objects, error) {
	write, err := traffic.Next(s, d, o.World)
	if write == nil || err != nil {
		return o, err
	}
	return o.write(s, write)
}

// write makes a write as an API server does.
func (o Objects) write(s traffic.Setup, w *traffic.Write) (Objects, error) {
	have := o.find(s, w.Key)
	var content map[string]any
	switch {
	case (w.Verb == traffic.Create) == (have != nil):
		// As in an API server, only a create may find no object, and no create may find one.
		return o, fmt.Errorf("%s: the object exists: %t", w, have != nil)
	case w.Verb == traffic.Delete:
	default:
		merged, err := Merge(have, w.Body)
		if err != nil {
			return o, fmt.Errorf("%s: %w", w, err)
		}
		content = merged
		meta := &unstructured.Unstructured{Object: content}
		// A gateway accepts a generation, so each write makes its status outdated.
		meta.SetGeneration(meta.GetGeneration() + 1)
		// Each write makes Lockstep a field manager, except the one that relinquishes its fields.
		fields := []metav1.ManagedFieldsEntry{{Manager: traffic.FieldManager}}
		if meta, _ := w.Body["metadata"].(map[string]any); meta["managedFields"] != nil {
			fields = nil
		}
		meta.SetManagedFields(fields)
	}
	return o.with(s, w.Key, content)
}

// Merge returns an object with a JSON merge patch. Without an object it is the patch.
func Merge(have any, patch map[string]any) (map[string]any, error) {
	base := []byte("{}")
	raw, err := json.Marshal(patch)
	if err == nil && have != nil {
		base, err = json.Marshal(have)
	}
	if err == nil {
		raw, err = jsonpatch.MergePatch(base, raw)
	}
	out := map[string]any{}
	if err == nil {
		err = utiljson.Unmarshal(raw, &out)
	}
	if err != nil {
		return nil, fmt.Errorf("merge: %w", err)
	}
	return out, nil
}

// find returns an object, nil if it does not exist.
func (o Objects) find(s traffic.Setup, key traffic.Key) any {
	switch r := o.Routes[key]; {
	case key.Kind == traffic.KindService && key.Name == s.Policy.StableService && o.Stable != nil:
		return o.Stable
	case key.Kind == traffic.KindService && key.Name == s.Policy.CanaryService && o.Canary != nil:
		return o.Canary
	case r != nil:
		return r
	case key.Kind == traffic.KindInferencePool && key.Name == s.Policy.Pool.Stable && o.StablePool != nil:
		return o.StablePool
	case key.Kind == traffic.KindInferencePool && key.Name == s.Policy.Pool.Canary && o.CanaryPool != nil:
		return o.CanaryPool
	}
	return nil
}

// with returns the objects with other content of one, or nil if it is deleted.
func (o Objects) with(s traffic.Setup, key traffic.Key, content map[string]any) (Objects, error) {
	switch {
	case key.Kind == traffic.KindInferencePool && key.Name == s.Policy.Pool.Stable:
		o.StablePool = &unstructured.Unstructured{Object: content}
		return o, nil
	case key.Kind == traffic.KindInferencePool && content == nil:
		o.CanaryPool = nil
		return o, nil
	case key.Kind == traffic.KindInferencePool:
		o.CanaryPool = &unstructured.Unstructured{Object: content}
		return o, nil
	case key.Kind != traffic.KindService:
		o.Routes = maps.Clone(o.Routes)
		o.Routes[key] = &unstructured.Unstructured{Object: content}
		return o, nil
	}
	var svc *corev1.Service
	if content != nil {
		raw, err := json.Marshal(content)
		if err == nil {
			err = json.Unmarshal(raw, &svc)
		}
		if err != nil {
			return o, fmt.Errorf("decode %s: %w", key, err)
		}
	}
	if key.Name == s.Policy.StableService {
		o.Stable = svc
	} else {
		o.Canary = svc
	}
	return o, nil
}

// Accept has the gateway accept the routes and pools as they are.
func (o Objects) Accept() Objects {
	o.Routes = maps.Clone(o.Routes)
	for key, r := range o.Routes {
		o.Routes[key] = accepted(r)
	}
	o.StablePool, o.CanaryPool = accepted(o.StablePool), accepted(o.CanaryPool)
	return o
}

func accepted(r *unstructured.Unstructured) *unstructured.Unstructured {
	if r == nil {
		return nil
	}
	r = r.DeepCopy()
	condition := func(name string) any {
		return map[string]any{"type": name, "status": "True", "observedGeneration": r.GetGeneration(), "reason": name}
	}
	r.Object["status"] = map[string]any{"parents": []any{map[string]any{
		"controllerName": "example.com/gateway",
		"parentRef":      map[string]any{"name": gateway}, "conditions": []any{condition("Accepted"), condition("ResolvedRefs")},
	}}}
	return r
}

// Follow has the endpoints of both Services follow their selectors.
func (o Objects) Follow(pods []Pod) Objects {
	o.StableReady, o.CanaryReady = selected(o.Stable, pods), selected(o.Canary, pods)
	return o
}

func selected(svc *corev1.Service, pods []Pod) []string {
	if svc == nil {
		return nil
	}
	var out []string
	for _, p := range pods {
		if p.Ready && labels.SelectorFromSet(svc.Spec.Selector).Matches(labels.Set(p.Labels)) {
			out = append(out, p.Name)
		}
	}
	return out
}
