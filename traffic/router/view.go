// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package router

import (
	"cmp"
	"log/slog"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/plugin/informer"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// serviceIndex is the index of EndpointSlices by Service.
const serviceIndex = "service"

// endpointSlice is the part of an EndpointSlice that is kept: a cluster has many, and most belong to no release.
type endpointSlice struct {
	metav1.ObjectMeta

	service string
	ready   []string // the pods
	ports   []string // names of the Service's ports that these pods have
}

// stripFields is the transform of all informers: it drops the fields that are not read.
func stripFields(obj any) any {
	switch o := obj.(type) {
	case *discoveryv1.EndpointSlice:
		return stripSlice(o)
	case *endpointSlice:
		// client-go may transform an object that is transformed already.
	case metav1.Object:
		if !slices.ContainsFunc(o.GetManagedFields(), traffic.IsLockstepEntry) {
			traffic.KeepLastWriter(o) // all are kept otherwise, to remove Lockstep's entries later
		}
		if annotations := o.GetAnnotations(); annotations[corev1.LastAppliedConfigAnnotation] != "" {
			delete(annotations, corev1.LastAppliedConfigAnnotation)
			o.SetAnnotations(annotations)
		}
	}
	return obj
}

func stripSlice(slice *discoveryv1.EndpointSlice) *endpointSlice {
	v := &endpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: slice.Namespace, Name: slice.Name, UID: slice.UID, ResourceVersion: slice.ResourceVersion,
		},
		service: slice.Labels[discoveryv1.LabelServiceName],
	}
	for i := range slice.Endpoints {
		if e := &slice.Endpoints[i]; mayServe(e.Conditions) {
			v.ready = append(v.ready, podOf(e))
		}
	}
	for _, port := range slice.Ports {
		v.ports = append(v.ports, ptr.Deref(port.Name, ""))
	}
	return v
}

// mayServe reports whether an endpoint may get requests. A Service with publishNotReadyAddresses has all endpoints Ready;
// then Serving shows whether the pod is.
func mayServe(c discoveryv1.EndpointConditions) bool {
	ready := ptr.Deref(c.Ready, true)
	return ready && ptr.Deref(c.Serving, ready) && !ptr.Deref(c.Terminating, false)
}

// podOf returns the pod of an endpoint.
func podOf(e *discoveryv1.Endpoint) string {
	if e.TargetRef != nil {
		return e.TargetRef.Name
	}
	// An endpoint that was written by hand need not have a pod. The API requires an address.
	return e.Addresses[0]
}

func (s *endpointSlice) serviceKeys() []string { return []string{s.Namespace + "/" + s.service} }

// changeHandler calls changed for each change. EndpointSlices are reported as their Service.
func changeHandler(kind string, changed func(namespace, kind, name string)) cache.ResourceEventHandler {
	return informer.OnChange(func(old, obj any) {
		before, had := old.(*endpointSlice)
		after, has := obj.(*endpointSlice)
		switch {
		case had && has && slices.Equal(before.ready, after.ready) && slices.Equal(before.ports, after.ports):
			// Other fields of a slice concern no release.
		case had || has:
			slice := cmp.Or(after, before)
			changed(slice.Namespace, traffic.KindService, slice.service)
		default:
			if meta, err := apimeta.Accessor(cmp.Or(obj, old)); err == nil {
				changed(meta.GetNamespace(), kind, meta.GetName())
			}
		}
	})
}

// look returns the objects of a release's traffic from the caches, or why they can't be read. It starts the informers that
// the release needs.
func (r *Router) look(s traffic.Setup) (traffic.World, error) {
	w := traffic.World{Routes: map[traffic.Key]*unstructured.Unstructured{}, Ingresses: map[string]*networkingv1.Ingress{}}
	kinds := kindsOf(s)
	// All are started before one is waited for, so that they fill side by side.
	for _, kind := range kinds {
		if src := r.sources[kind]; src.Start() {
			r.log.Info("filling a cache", slog.String("resource", src.Source().Resource.String()))
		}
	}
	for _, kind := range kinds {
		if err := r.sources[kind].Err(); err != nil {
			return w, err
		}
	}
	for _, key := range s.Objects() {
		switch o := informer.Get[any](r.sources[key.Kind], types.NamespacedName{Namespace: s.Namespace, Name: key.Name}).(type) {
		case *corev1.Service:
			putService(&w, s.Policy, o)
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
	w.StableReady, _ = r.ready(s.Namespace, s.Policy.StableService, nil)
	// A slice without a routed port has no address for a gateway, although its pods are ready.
	w.CanaryReady, w.CanaryPortless = r.ready(s.Namespace, s.Policy.CanaryService, w.RoutedPorts(s))
	if pool := s.Policy.Pool; pool != nil {
		w.PickerReady, _ = r.ready(s.Namespace, pool.Picker, nil)
	}
	return w, nil
}

func putService(w *traffic.World, p traffic.Policy, svc *corev1.Service) {
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

// kindsOf returns the kinds whose caches a release needs.
func kindsOf(s traffic.Setup) []string {
	kinds := []string{traffic.KindService, kindSlice}
	for _, key := range s.Objects() {
		if !slices.Contains(kinds, key.Kind) {
			kinds = append(kinds, key.Kind)
		}
	}
	return kinds
}

// ready returns the pods that are ready endpoints of a Service, each once: with two address families, a pod is in two slices. Those
// that lack one of the ports are apart.
func (r *Router) ready(namespace, service string, ports []string) (pods, portless []string) {
	for _, slice := range informer.List[*endpointSlice](r.sources[kindSlice], serviceIndex, namespace+"/"+service) {
		if slices.ContainsFunc(ports, func(port string) bool { return !slices.Contains(slice.ports, port) }) {
			portless = append(portless, slice.ready...)
			continue
		}
		pods = append(pods, slice.ready...)
	}
	slices.Sort(pods)
	slices.Sort(portless)
	return slices.Compact(pods), slices.Compact(portless)
}
