// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package router

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/informer"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// kindSlice is the kind of a Service's endpoints. [Config.Changed] reports them as the Service.
const kindSlice = "EndpointSlice"

// discoverPeriod is the interval at which a missing API is discovered again.
const discoverPeriod = 2 * time.Second

const gatewayAPI = "Gateway API"

// kind is a kind of objects that is cached.
type kind struct {
	source   *informer.Source
	object   runtime.Object
	indexers cache.Indexers
	// api is the name that users know it by. Empty means that every cluster has it.
	api string
}

// newSources returns the informers by the kinds that they cache. changed is called for each change.
func newSources(
	core kubernetes.Interface, client dynamic.Interface, namespace string, changed func(namespace, kind, name string),
) map[string]*informer.Informer {
	gateway := func(group, version, resource, api string) kind {
		r := schema.GroupVersionResource{Group: group, Version: version, Resource: resource}
		return kind{informer.NewSource(r, client, client.Resource(r).Namespace(namespace), ""), &unstructured.Unstructured{}, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}, api}
	}
	kinds := map[string]kind{
		traffic.KindService: {
			source: informer.NewSource(corev1.SchemeGroupVersion.WithResource("services"), core, core.CoreV1().Services(namespace), ""),
			object: &corev1.Service{}, indexers: cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
		},
		kindSlice: {
			source: informer.NewSource(discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), core,
				core.DiscoveryV1().EndpointSlices(namespace), discoveryv1.LabelServiceName),
			object: &discoveryv1.EndpointSlice{}, indexers: cache.Indexers{serviceIndex: informer.Index((*endpointSlice).serviceKeys)},
		},
		traffic.KindIngress: {
			source: informer.NewSource(networkingv1.SchemeGroupVersion.WithResource("ingresses"), core, core.NetworkingV1().Ingresses(namespace), ""),
			object: &networkingv1.Ingress{}, indexers: cache.Indexers{},
		},
		traffic.KindHTTPRoute:     gateway(traffic.GatewayGroup, traffic.GatewayVersion, "httproutes", gatewayAPI),
		traffic.KindGRPCRoute:     gateway(traffic.GatewayGroup, traffic.GatewayVersion, "grpcroutes", gatewayAPI),
		traffic.KindInferencePool: gateway(traffic.InferenceGroup, traffic.InferenceVersion, "inferencepools", "Gateway API Inference Extension"),
	}
	all := map[string]*informer.Informer{}
	for kind, k := range kinds {
		config := informer.Config{
			Source: k.source, Example: k.object, Indexers: k.indexers,
			Transform: informer.Transform(stripFields), Handler: changeHandler(kind, changed), Changed: func() { changed("", kind, "") },
		}
		if k.api != "" {
			config.Discovery, config.RetryPeriod = core.Discovery(), discoverPeriod
			config.Missing = drivererr.New(pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND,
				"the policy names an object of kind %s, but the %s's %s (%s) are not installed in this cluster: install its CRDs and a gateway controller",
				kind, k.api, k.source.Resource.Resource, k.source.Resource.GroupVersion())
		}
		all[kind] = informer.New(config)
	}
	return all
}
