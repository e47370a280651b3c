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

// InstallKEDA installs KEDA's ScaledObject CRD without a controller. It may be called more than once.
func (c *Cluster) InstallKEDA(ctx context.Context) error {
	built, err := c.build(ctx, kedaModule)
	if err != nil {
		return err
	}
	objects, err := readManifests(built.manifests("config/crd/bases"))
	if err != nil {
		return err
	}
	i := slices.IndexFunc(objects, func(object *unstructured.Unstructured) bool { return object.GetName() == "scaledobjects.keda.sh" })
	if i < 0 {
		return errors.New("install KEDA: its module has no ScaledObject CRD")
	}
	if err := c.installCRD(ctx, objects[i]); err != nil {
		return fmt.Errorf("install KEDA: %w", err)
	}
	return nil
}
