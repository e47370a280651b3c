// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"encoding/json"
	"time"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
)

// resync has every Rollout looked at again now and then, in case something was missed.
const resync = 10 * time.Minute

// newRolloutInformer watches Rollouts and keeps them as *v1alpha1.Rollout. One that can't be read stays as it is and is
// nobody's.
func newRolloutInformer(client dynamic.Interface, namespace string) cache.SharedIndexInformer {
	informer := dynamicinformer.NewFilteredDynamicInformer(client, rolloutResource, namespace, resync,
		cache.Indexers{byWorkload: indexByWorkload}, nil).Informer()
	// It fails once the informer runs, which this one does not.
	_ = informer.SetTransform(readRollout)
	return informer
}

func indexByWorkload(o any) ([]string, error) {
	ro, ok := o.(*v1alpha1.Rollout)
	if !ok {
		return nil, nil
	}
	if workload, _ := workloadOf(ro); workload.Name != "" { // whoever acts on it says what is wrong
		return []string{workload.String()}, nil
	}
	return nil, nil
}

// readRollout turns what the API has into the type, without what nobody here reads.
func readRollout(o any) (any, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return o, nil
	}
	raw, err := json.Marshal(u.Object)
	if err != nil {
		return o, nil //nolint:nilerr // It stays as it is.
	}
	ro := &v1alpha1.Rollout{}
	if err := json.Unmarshal(raw, ro); err != nil {
		return o, nil //nolint:nilerr // It stays as it is.
	}
	ro.ManagedFields = nil
	return ro, nil
}
