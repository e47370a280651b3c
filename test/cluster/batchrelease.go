// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// InstallBatchRelease installs Kruise's BatchRelease CRD without a controller. It may be called more than once.
func (c *Cluster) InstallBatchRelease(ctx context.Context) error {
	built, err := c.build(ctx, batchReleaseModule)
	if err != nil {
		return err
	}
	objects, err := readManifests(built.manifests("config/crd/bases"))
	if err != nil {
		return err
	}
	i := slices.IndexFunc(objects, func(object *unstructured.Unstructured) bool {
		return object.GetName() == "batchreleases.rollouts.kruise.io"
	})
	if i < 0 {
		return errors.New("install BatchRelease: Kruise's module has no such CRD")
	}
	unstructured.RemoveNestedField(objects[i].Object, "metadata", "creationTimestamp")
	if err := c.installCRD(ctx, objects[i]); err != nil {
		return fmt.Errorf("install BatchRelease: %w", err)
	}
	return nil
}
