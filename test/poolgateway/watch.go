// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package poolgateway

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	gateway "sigs.k8s.io/gateway-api/apis/v1"
)

// controllerName is the gateway's name in the status of routes.
const controllerName = "test.lockstep.dev/pool-gateway"

var (
	routes = schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "httproutes"}
	pools  = schema.GroupVersionResource{Group: "inference.networking.k8s.io", Version: "v1", Resource: "inferencepools"}
)

// pool is the part of an InferencePool that the gateway reads.
type pool struct {
	Spec struct {
		Picker struct {
			Name string `json:"name"`
			Port struct {
				Number int `json:"number"`
			} `json:"port"`
		} `json:"endpointPickerRef"`
	} `json:"spec"`
}

// watch follows the route and the pools until ctx ends.
func (g *Gateway) watch(ctx context.Context) {
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(g.dynamic, 0, g.namespace, nil)
	changed := make(chan struct{}, 1)
	wake := func(any) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: wake, UpdateFunc: func(_, object any) { wake(object) }, DeleteFunc: wake,
	}
	of := map[schema.GroupVersionResource]cache.Indexer{}
	for _, resource := range []schema.GroupVersionResource{routes, pools} {
		informer := factory.ForResource(resource).Informer()
		if _, err := informer.AddEventHandler(handler); err != nil {
			g.fail(fmt.Errorf("watch %s: %w", resource.Resource, err))
			return
		}
		of[resource] = informer.GetIndexer()
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	defer factory.Shutdown()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			g.follow(ctx, of[routes], of[pools])
		}
	}
}

// follow puts the route in force, then reports so. A failure is tried again at the next event.
func (g *Gateway) follow(ctx context.Context, routeCache, poolCache cache.Indexer) {
	var route gateway.HTTPRoute
	object := cached(routeCache, g.namespace, g.route)
	if object == nil || runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &route) != nil || len(route.Spec.ParentRefs) == 0 {
		g.use(nil)
		return
	}
	parent := route.Spec.ParentRefs[0]
	backends, problem := g.backendsOf(ctx, route, poolCache)
	if problem == nil {
		g.use(backends)
	}
	status := parentStatus(object, parent, problem)
	status["controllerName"] = controllerName
	g.report(ctx, routes, object, []any{status})
	if problem != nil {
		return
	}
	used := map[string]bool{}
	for _, b := range backends {
		used[b.pool] = true
	}
	for _, key := range poolCache.ListKeys() {
		_, name, _ := cache.SplitMetaNamespaceKey(key)
		switch p := cached(poolCache, g.namespace, name); {
		case p == nil || p.GetDeletionTimestamp() != nil:
		case used[name]:
			g.report(ctx, pools, p, []any{parentStatus(p, parent, nil)})
		default: // a gateway reports on a pool only while a route refers to it
			g.report(ctx, pools, p, []any{})
		}
	}
}

// use has requests split between these pools. A table that does not change stays, with its credits.
func (g *Gateway) use(backends []*backend) {
	g.mu.Lock()
	defer g.mu.Unlock()
	same := func(a, b *backend) bool { return a.pool == b.pool && a.picker == b.picker && a.weight == b.weight }
	if g.table != nil && slices.EqualFunc(backends, g.table.backends, same) {
		return
	}
	g.table = &Table{Weights: map[string]int{}, backends: backends}
	for _, b := range backends {
		g.table.Weights[b.pool] += b.weight
	}
}

// backendsOf returns the pools of the route's rule, or an error that the route's status reports.
func (g *Gateway) backendsOf(ctx context.Context, route gateway.HTTPRoute, poolCache cache.Indexer) ([]*backend, error) {
	if len(route.Spec.Rules) != 1 {
		return nil, fmt.Errorf("the route has %d rules, want one", len(route.Spec.Rules))
	}
	refs := route.Spec.Rules[0].BackendRefs
	all := make([]*backend, 0, len(refs))
	for _, ref := range refs {
		if ref.Kind == nil || *ref.Kind != "InferencePool" {
			return nil, fmt.Errorf("backend %s is no InferencePool", ref.Name)
		}
		object := cached(poolCache, g.namespace, string(ref.Name))
		if object == nil {
			return nil, fmt.Errorf("InferencePool %s does not exist", ref.Name)
		}
		var p pool
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &p); err != nil {
			return nil, err
		}
		picker, err := g.pickerOf(ctx, p)
		if err != nil {
			return nil, err
		}
		weight := 1
		if ref.Weight != nil {
			weight = int(*ref.Weight)
		}
		all = append(all, &backend{pool: string(ref.Name), picker: picker, weight: weight})
	}
	return all, nil
}

func cached(indexer cache.Indexer, namespace, name string) *unstructured.Unstructured {
	object, _, err := indexer.GetByKey(namespace + "/" + name)
	if err != nil {
		return nil
	}
	found, _ := object.(*unstructured.Unstructured)
	return found
}

// parentStatus returns the status of an object that is in force, or not.
func parentStatus(object *unstructured.Unstructured, parent gateway.ParentReference, problem error) map[string]any {
	ref := map[string]any{"name": string(parent.Name)}
	if parent.Group != nil && parent.Kind != nil {
		ref["group"], ref["kind"] = string(*parent.Group), string(*parent.Kind)
	}
	condition := func(kind string, problem error) map[string]any {
		c := map[string]any{
			"type": kind, "status": "True", "reason": kind, "message": "", "observedGeneration": object.GetGeneration(),
			"lastTransitionTime": "2026-01-01T00:00:00Z",
		}
		if problem != nil {
			c["status"], c["reason"], c["message"] = "False", "BackendNotFound", problem.Error()
		}
		return c
	}
	return map[string]any{
		"parentRef": ref, "conditions": []any{condition("Accepted", nil), condition("ResolvedRefs", problem)},
	}
}

// fail keeps an error for [Gateway.Stop].
func (g *Gateway) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err = errors.Join(g.err, err)
}

// report writes the status of an object, unless it is so already.
func (g *Gateway) report(ctx context.Context, resource schema.GroupVersionResource, object *unstructured.Unstructured, parents []any) {
	before, _, _ := unstructured.NestedSlice(object.Object, "status", "parents")
	if len(before) == 0 && len(parents) == 0 || reflect.DeepEqual(before, parents) {
		return
	}
	object = object.DeepCopy()
	if err := unstructured.SetNestedSlice(object.Object, parents, "status", "parents"); err != nil {
		g.fail(fmt.Errorf("report on %s %s: %w", object.GetKind(), object.GetName(), err))
		return
	}
	_, err := g.dynamic.Resource(resource).Namespace(g.namespace).UpdateStatus(ctx, object, metav1.UpdateOptions{})
	if err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		g.fail(fmt.Errorf("report on %s %s: %w", object.GetKind(), object.GetName(), err))
	}
}
