// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package manage

import (
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// LeaderWorkerSet is the kind of the workloads.
var LeaderWorkerSet = schema.GroupVersionKind{Group: "leaderworkerset.x-k8s.io", Version: "v1", Kind: "LeaderWorkerSet"}

// API is a kind that a host needs.
type API struct {
	Kind schema.GroupVersionKind
	// Fix is what to do if it is missing.
	Fix string
}

// Workloads is the API of the workloads.
func Workloads() API {
	return API{LeaderWorkerSet, "LeaderWorkerSet is not installed: install LWS v0.9.0 or later"}
}

// Installed returns an error for the APIs that the cluster does not serve.
func Installed(config *rest.Config, apis ...API) error {
	d, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	var missing []error
	for _, api := range apis {
		gv := api.Kind.GroupVersion().String()
		list, err := d.ServerResourcesForGroupVersion(gv)
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("discover %s: %w", gv, err)
		}
		if err != nil || !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Kind == api.Kind.Kind }) {
			missing = append(missing, fmt.Errorf("the cluster does not serve %s of %s: %s", api.Kind.Kind, gv, api.Fix))
		}
	}
	return errors.Join(missing...)
}
