// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package router

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/traffic"
)

// serviceIndex finds the EndpointSlices of a Service.
const serviceIndex = "service"

// sliceView is what is kept of an EndpointSlice: a cluster has many, and most are of no release.
type sliceView struct {
	metav1.ObjectMeta

	service string
	ready   []string // the pods
}

// view is the transform of all informers: it drops what is not read.
func view(obj any) (any, error) {
	if slice, ok := obj.(*discoveryv1.EndpointSlice); ok {
		return viewSlice(slice), nil
	}
	if _, seen := obj.(*sliceView); seen {
		return obj, nil
	}
	if meta, err := apimeta.Accessor(obj); err == nil {
		if !slices.ContainsFunc(meta.GetManagedFields(), traffic.IsLockstepEntry) {
			meta.SetManagedFields(nil) // otherwise they are needed, to give ours up
		}
		if annotations := meta.GetAnnotations(); annotations[corev1.LastAppliedConfigAnnotation] != "" {
			delete(annotations, corev1.LastAppliedConfigAnnotation)
			meta.SetAnnotations(annotations)
		}
	}
	return obj, nil
}

func viewSlice(slice *discoveryv1.EndpointSlice) *sliceView {
	v := &sliceView{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: slice.Namespace, Name: slice.Name, UID: slice.UID, ResourceVersion: slice.ResourceVersion,
		},
		service: slice.Labels[discoveryv1.LabelServiceName],
	}
	for i := range slice.Endpoints {
		if e := &slice.Endpoints[i]; serves(e.Conditions) {
			v.ready = append(v.ready, target(e))
		}
	}
	return v
}

// serves says whether requests may go to an endpoint. A Service that publishes addresses of pods that are not ready
// has them all Ready; whether they are, Serving tells.
func serves(c discoveryv1.EndpointConditions) bool {
	ready := ptr.Deref(c.Ready, true)
	return ready && ptr.Deref(c.Serving, ready) && !ptr.Deref(c.Terminating, false)
}

// target is the pod behind an endpoint; a Service of two address families has it twice.
func target(e *discoveryv1.Endpoint) string {
	if e.TargetRef != nil {
		return e.TargetRef.Name
	}
	return e.Addresses[0]
}

func indexByService(obj any) ([]string, error) {
	v, ok := obj.(*sliceView)
	if !ok {
		return nil, nil
	}
	return []string{v.Namespace + "/" + v.service}, nil
}

// handler passes changes on. Slices of a Service are the Service to whoever listens.
func (s *source) handler(told func(namespace, kind, name string)) cache.ResourceEventHandler {
	tell := func(obj any) {
		if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		if slice, ok := obj.(*sliceView); ok {
			told(slice.Namespace, traffic.KindService, slice.service)
		} else if meta, err := apimeta.Accessor(obj); err == nil {
			told(meta.GetNamespace(), s.kind, meta.GetName())
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: tell,
		UpdateFunc: func(old, obj any) {
			before, ok := old.(*sliceView)
			after, also := obj.(*sliceView)
			if !ok || !also || !slices.Equal(before.ready, after.ready) {
				tell(obj)
			}
		},
		DeleteFunc: tell,
	}
}

// look returns the objects of a release's traffic from the caches, or why they can't be read. Caches that it needs and
// that are not filled begin to be.
func (r *Router) look(s traffic.Setup) (traffic.World, error) {
	w := traffic.World{Routes: map[traffic.Key]*unstructured.Unstructured{}, Ingresses: map[string]*networkingv1.Ingress{}}
	for _, kind := range kindsOf(s) {
		src := r.sources[kind]
		src.start.Do(func() { r.wanted <- src })
		if err := src.why(); err != nil {
			return w, err
		}
	}
	w.StableReady = r.ready(s.Namespace, s.Policy.StableService)
	w.CanaryReady = r.ready(s.Namespace, s.Policy.CanaryService)
	if pool := s.Policy.Pool; pool != nil {
		w.PickerReady = r.ready(s.Namespace, pool.Picker)
	}
	for _, key := range s.Objects() {
		switch o := r.sources[key.Kind].get(s.Namespace, key.Name).(type) {
		case *corev1.Service:
			put(&w, s.Policy, o)
		case *networkingv1.Ingress:
			w.Ingresses[key.Name] = o
		case *unstructured.Unstructured:
			if key.Kind == traffic.KindInferencePool {
				putPool(&w, s.Policy.Pool, o)
			} else {
				w.Routes[key] = o
			}
		}
	}
	return w, nil
}

func put(w *traffic.World, p traffic.Policy, svc *corev1.Service) {
	switch svc.Name {
	case p.StableService:
		w.Stable = svc
	case p.CanaryService:
		w.Canary = svc
	default:
		w.Picker = svc
	}
}

func putPool(w *traffic.World, p *traffic.Pool, o *unstructured.Unstructured) {
	if o.GetName() == p.Canary {
		w.CanaryPool = o
	} else {
		w.StablePool = o
	}
}

// kindsOf are the kinds whose caches a release needs.
func kindsOf(s traffic.Setup) []string {
	kinds := []string{traffic.KindService, kindSlice}
	for _, key := range s.Objects() {
		if !slices.Contains(kinds, key.Kind) {
			kinds = append(kinds, key.Kind)
		}
	}
	return kinds
}

// ready are the pods that are ready endpoints of a Service, each once.
func (r *Router) ready(namespace, service string) []string {
	objs, err := r.sources[kindSlice].informer.GetIndexer().ByIndex(serviceIndex, namespace+"/"+service)
	if err != nil {
		return nil
	}
	var pods []string
	for _, obj := range objs {
		if slice, ok := obj.(*sliceView); ok {
			pods = append(pods, slice.ready...)
		}
	}
	slices.Sort(pods)
	return slices.Compact(pods)
}
