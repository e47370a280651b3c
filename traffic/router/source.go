// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package router

import (
	"context"
	"fmt"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	coreinformers "k8s.io/client-go/informers/core/v1"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	networkinginformers "k8s.io/client-go/informers/networking/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/lockstep-rollouts/lockstep/internal/informer"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// kindSlice is the kind of a Service's endpoints. [OnChange] reports them as the Service.
const kindSlice = "EndpointSlice"

// discoverPeriod is the interval at which a missing API is discovered again.
const discoverPeriod = 2 * time.Second

// source is the cache of one kind.
type source struct {
	kind     string
	resource schema.GroupVersionResource
	informer cache.SharedIndexInformer
	// optional discovers whether the API, with the product name api, is installed. Nil for built-in APIs.
	optional discovery.ServerResourcesInterface
	api      string

	start sync.Once
	told  func() // wakes up who waits for the cache

	mu  sync.Mutex
	err error // why it is not filled
}

func newSources(core kubernetes.Interface, client dynamic.Interface, namespace string) []*source {
	ofServices := func(o *metav1.ListOptions) { o.LabelSelector = discoveryv1.LabelServiceName }
	all := []*source{ //nolint:prealloc // a list of what there is
		{
			kind: traffic.KindService, resource: schema.GroupVersionResource{Version: "v1", Resource: "services"},
			informer: coreinformers.NewServiceInformer(core, namespace, 0, cache.Indexers{}),
		},
		{
			kind: kindSlice, resource: discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
			informer: discoveryinformers.NewFilteredEndpointSliceInformer(core, namespace, 0,
				cache.Indexers{serviceIndex: indexByService}, ofServices),
		},
		{
			kind: traffic.KindIngress, resource: networkingv1.SchemeGroupVersion.WithResource("ingresses"),
			informer: networkinginformers.NewIngressInformer(core, namespace, 0, cache.Indexers{}),
		},
	}
	for _, api := range []struct {
		kind, plural, name string
		version            schema.GroupVersion
	}{
		{traffic.KindHTTPRoute, "httproutes", gatewayAPI, schema.GroupVersion{Group: traffic.GatewayGroup, Version: traffic.GatewayVersion}},
		{traffic.KindGRPCRoute, "grpcroutes", gatewayAPI, schema.GroupVersion{Group: traffic.GatewayGroup, Version: traffic.GatewayVersion}},
		{traffic.KindInferencePool, "inferencepools", "Gateway API Inference Extension", schema.GroupVersion{Group: traffic.InferenceGroup, Version: traffic.InferenceVersion}},
	} {
		resource := api.version.WithResource(api.plural)
		all = append(all, &source{
			kind: api.kind, resource: resource, api: api.name, optional: core.Discovery(),
			informer: dynamicinformer.NewFilteredDynamicInformer(client, resource, namespace, 0, cache.Indexers{}, nil).Informer(),
		})
	}
	return all
}

const gatewayAPI = "Gateway API"

// prepare sets what must be set before the informer runs. told is called for each change.
func (s *source) prepare(told func(namespace, kind, name string)) error {
	s.told = func() { told("", s.kind, "") }
	if err := s.informer.SetTransform(strip); err != nil {
		return fmt.Errorf("set transform: %w", err)
	}
	if err := s.informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		s.fail(fmt.Errorf("fill the cache of %s: %w", s.resource.Resource, err))
		cache.DefaultWatchErrorHandler(ctx, r, err)
	}); err != nil {
		return fmt.Errorf("set watch error handler: %w", err)
	}
	if _, err := s.informer.AddEventHandler(s.handler(told)); err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	return nil
}

// run fills the cache until ctx ends.
func (s *source) run(ctx context.Context) {
	if !s.awaitAPI(ctx) {
		return
	}
	informer.Run(ctx, s.informer, s.told)
}

// awaitAPI returns true once the API is installed.
func (s *source) awaitAPI(ctx context.Context) bool {
	if s.optional == nil {
		return true
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return false
		}
		err := s.installed()
		if err == nil {
			s.fail(nil)
			return true
		}
		s.fail(err)
		timer.Reset(discoverPeriod)
	}
}

// installed asks the API server for the resource. A watch would not soon distinguish a missing API from an empty one.
func (s *source) installed() error {
	resources, err := s.optional.ServerResourcesForGroupVersion(s.resource.GroupVersion().String())
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("discover %s: %w", s.resource.GroupVersion(), err)
	}
	if err == nil {
		for i := range resources.APIResources {
			if resources.APIResources[i].Name == s.resource.Resource {
				return nil
			}
		}
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND,
		"the policy names a %s, but the %s's %s (%s) are not installed in this cluster: install its CRDs and a gateway controller",
		s.kind, s.api, s.resource.Resource, s.resource.GroupVersion())
}

// fail stores why the cache is not synced, and reports a change.
func (s *source) fail(err error) {
	s.mu.Lock()
	news := (err == nil) != (s.err == nil) || err != nil && err.Error() != s.err.Error()
	s.err = err
	s.mu.Unlock()
	if news {
		s.told()
	}
}

// why returns why the cache can't be read, nil if it can.
func (s *source) why() error {
	if s.informer.HasSynced() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED, "the cache of %s is not synced yet", s.resource.Resource)
}

// get returns an object, nil if it does not exist.
func (s *source) get(namespace, name string) any {
	obj, ok, err := s.informer.GetIndexer().GetByKey(namespace + "/" + name)
	if err != nil || !ok {
		return nil
	}
	return obj
}
