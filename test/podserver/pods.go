// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package podserver

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// pods reads the pods of a cluster, from a cache that may lag by milliseconds, or from the API server.
type pods struct {
	client kubernetes.Interface
	index  cache.Indexer

	mu sync.Mutex
	// ends has a channel per pod with long requests, which is closed when the pod can't serve them any more.
	ends map[types.UID]chan struct{}
}

const (
	byAddress = "address"
	byGroup   = "group"
	byPartner = "partner"
)

// watchPods returns when the cache is filled. The cache is updated until ctx ends.
func watchPods(ctx context.Context, client kubernetes.Interface) (*pods, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(func(object any) (any, error) {
		if pod, ok := object.(*corev1.Pod); ok {
			pod.ManagedFields = nil
		}
		return object, nil
	}))
	informer := factory.Core().V1().Pods().Informer()
	p := &pods{client: client, index: informer.GetIndexer(), ends: map[types.UID]chan struct{}{}}
	if err := informer.AddIndexers(cache.Indexers{byAddress: addressOf, byGroup: groupOf, byPartner: partnerOf}); err != nil {
		return nil, fmt.Errorf("index pods: %w", err)
	}
	if _, err := informer.AddEventHandler(p.handler()); err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil, fmt.Errorf("watch pods: %w", context.Cause(ctx))
	}
	return p, nil
}

func addressOf(object any) ([]string, error) {
	if pod, ok := object.(*corev1.Pod); ok && pod.Status.PodIP != "" && !pod.Spec.HostNetwork {
		return []string{pod.Status.PodIP}, nil
	}
	return nil, nil
}

func groupOf(object any) ([]string, error) {
	if pod, ok := object.(*corev1.Pod); ok && pod.Labels[lws.SetNameLabelKey] != "" {
		return []string{groupKey(pod)}, nil
	}
	return nil, nil
}

func groupKey(pod *corev1.Pod) string {
	return pod.Namespace + "/" + pod.Labels[lws.SetNameLabelKey] + "/" + pod.Labels[lws.GroupIndexLabelKey]
}

// handler ends the long requests of pods that can't serve any more.
func (p *pods) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, after any) {
			was, _ := before.(*corev1.Pod)
			is, _ := after.(*corev1.Pod)
			if was.UID != is.UID || !runs(is) {
				p.end(was.UID)
			}
		},
		DeleteFunc: func(object any) {
			if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = last.Obj
			}
			if pod, ok := object.(*corev1.Pod); ok {
				p.end(pod.UID)
			}
		},
	}
}

func (p *pods) end(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ended, ok := p.ends[uid]; ok {
		close(ended)
		delete(p.ends, uid)
	}
}

// ended returns a channel that is closed when the pod is gone or its containers have ended.
func (p *pods) ended(pod *corev1.Pod) <-chan struct{} {
	p.mu.Lock()
	ended, ok := p.ends[pod.UID]
	if !ok {
		ended = make(chan struct{})
		p.ends[pod.UID] = ended
	}
	p.mu.Unlock()
	// The pod may have ended before this call.
	object, exists, err := p.index.GetByKey(pod.Namespace + "/" + pod.Name)
	if now, ok := object.(*corev1.Pod); err == nil && (!exists || ok && (now.UID != pod.UID || !runs(now))) {
		p.end(pod.UID)
	}
	return ended
}

// at returns the pod that has the address, or nil.
func (p *pods) at(address string) (*corev1.Pod, error) {
	objects, err := p.index.ByIndex(byAddress, address)
	if err != nil {
		return nil, fmt.Errorf("find pod %s: %w", address, err)
	}
	found := make([]corev1.Pod, 0, len(objects))
	for _, object := range objects {
		if pod, ok := object.(*corev1.Pod); ok {
			found = append(found, *pod)
		}
	}
	return only(address, found)
}

// liveAt returns the pod that has the address, from the API server.
func (p *pods) liveAt(ctx context.Context, address string) (*corev1.Pod, error) {
	list, err := p.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("status.podIP", address).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("find pod %s: %w", address, err)
	}
	elsewhere := func(pod corev1.Pod) bool { return pod.Status.PodIP != address || pod.Spec.HostNetwork }
	return only(address, slices.DeleteFunc(list.Items, elsewhere))
}

func only(address string, found []corev1.Pod) (*corev1.Pod, error) {
	switch len(found) {
	case 0:
		return nil, nil //nolint:nilnil // no pod has the address
	case 1:
		return &found[0], nil
	default:
		return nil, fmt.Errorf("%s/%s and %s/%s both have address %s: this is a defect of the test cluster",
			found[0].Namespace, found[0].Name, found[1].Namespace, found[1].Name, address)
	}
}

// group returns the pods of a pod's group.
func (p *pods) group(pod *corev1.Pod) ([]*corev1.Pod, error) {
	objects, err := p.index.ByIndex(byGroup, groupKey(pod))
	if err != nil {
		return nil, fmt.Errorf("find group %s: %w", groupKey(pod), err)
	}
	members := make([]*corev1.Pod, 0, len(objects))
	for _, object := range objects {
		if member, ok := object.(*corev1.Pod); ok {
			members = append(members, member)
		}
	}
	return members, nil
}

// liveGroup returns the pods of a pod's group, from the API server.
func (p *pods) liveGroup(ctx context.Context, pod *corev1.Pod) ([]*corev1.Pod, error) {
	selector := labels.Set{
		lws.SetNameLabelKey: pod.Labels[lws.SetNameLabelKey], lws.GroupIndexLabelKey: pod.Labels[lws.GroupIndexLabelKey],
	}
	list, err := p.client.CoreV1().Pods(pod.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, fmt.Errorf("find group %s: %w", groupKey(pod), err)
	}
	members := make([]*corev1.Pod, len(list.Items))
	for i := range list.Items {
		members[i] = &list.Items[i]
	}
	return members, nil
}

// whole reports whether all pods of a group exist and are ready.
func whole(leader *corev1.Pod, members []*corev1.Pod) (bool, string) {
	size, err := strconv.Atoi(leader.Annotations[lws.SizeAnnotationKey])
	if err != nil {
		return false, fmt.Sprintf("pod %s has no size: %v", leader.Name, err)
	}
	count := 0
	for _, member := range members {
		if Ready(member) {
			count++
		}
	}
	return count >= size, fmt.Sprintf("%d of %d pods are ready", count, size)
}

// Ready reports whether a pod is ready.
func Ready(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// runs reports whether all containers of a pod run.
func runs(pod *corev1.Pod) bool {
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].State.Running == nil {
			return false
		}
	}
	return pod.Status.Phase == corev1.PodRunning
}
