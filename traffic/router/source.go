// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package router

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	coreinformers "k8s.io/client-go/informers/core/v1"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	networkinginformers "k8s.io/client-go/informers/networking/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/lockstep-rollouts/lockstep/informer"
	"github.com/lockstep-rollouts/lockstep/informer/guard"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// kindSlice is the kind of a Service's endpoints. [OnChange] reports them as the Service.
const kindSlice = "EndpointSlice"

// discoverPeriod is the interval at which a missing API is discovered again.
const discoverPeriod = 2 * time.Second

const gatewayAPI = "Gateway API"

// newSources returns the informers by the kinds that they cache. changed is called for each change.
func newSources(
	core kubernetes.Interface, client dynamic.Interface, namespace string, changed func(namespace, kind, name string),
) (map[string]*informer.Informer, error) {
	ofServices := func(o *metav1.ListOptions) { o.LabelSelector = discoveryv1.LabelServiceName }
	kinds := map[string]struct {
		resource schema.GroupVersionResource
		informer cache.SharedIndexInformer
		api      string // the name that users know it by; empty: every cluster has it
	}{
		traffic.KindService: {
			resource: corev1.SchemeGroupVersion.WithResource("services"),
			informer: coreinformers.NewServiceInformer(core, namespace, 0,
				guard.Indexers(cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})),
		},
		kindSlice: {
			resource: discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
			informer: discoveryinformers.NewFilteredEndpointSliceInformer(core, namespace, 0,
				guard.Indexers(cache.Indexers{serviceIndex: indexByService}), ofServices),
		},
		traffic.KindIngress: {
			resource: networkingv1.SchemeGroupVersion.WithResource("ingresses"),
			informer: networkinginformers.NewIngressInformer(core, namespace, 0, cache.Indexers{}),
		},
		traffic.KindHTTPRoute: {
			resource: schema.GroupVersionResource{Group: traffic.GatewayGroup, Version: traffic.GatewayVersion, Resource: "httproutes"}, api: gatewayAPI,
		},
		traffic.KindGRPCRoute: {
			resource: schema.GroupVersionResource{Group: traffic.GatewayGroup, Version: traffic.GatewayVersion, Resource: "grpcroutes"}, api: gatewayAPI,
		},
		traffic.KindInferencePool: {
			resource: schema.GroupVersionResource{Group: traffic.InferenceGroup, Version: traffic.InferenceVersion, Resource: "inferencepools"},
			api:      "Gateway API Inference Extension",
		},
	}
	all := map[string]*informer.Informer{}
	for kind, k := range kinds {
		config := informer.Config{
			Resource: k.resource, Transform: strip, Handler: handler(kind, changed), Changed: func() { changed("", kind, "") },
		}
		if k.api != "" {
			k.informer = dynamicinformer.NewFilteredDynamicInformer(client, k.resource, namespace, 0, cache.Indexers{}, nil).Informer()
			config.Discovery, config.RetryPeriod = core.Discovery(), discoverPeriod
			config.Missing = drivererr.New(pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND,
				"the policy names an object of kind %s, but the %s's %s (%s) are not installed in this cluster: install its CRDs and a gateway controller",
				kind, k.api, k.resource.Resource, k.resource.GroupVersion())
		}
		var err error
		if all[kind], err = informer.New(k.informer, config); err != nil {
			return nil, err
		}
	}
	return all, nil
}
