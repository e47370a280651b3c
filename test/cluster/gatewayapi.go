package cluster

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// crdKind is the kind of a CRD itself.
const crdKind = "CustomResourceDefinition"

// installGatewayAPI applies the standard channel, its admission policy too, and InferencePool v1 without the experimental
// kinds (groups with an x) that the Inference Extension keeps beside it.
func (c *Cluster) installGatewayAPI(ctx context.Context) error {
	built, err := c.build(ctx, gatewayAPIModule)
	if err != nil {
		return err
	}
	objects, err := readManifests(built.manifests("config/crd/standard"))
	if err != nil {
		return err
	}
	inference, err := readManifests(built.manifests("config/crd/bases"))
	if err != nil {
		return err
	}
	inference = slices.DeleteFunc(inference, func(object *unstructured.Unstructured) bool {
		group, _, _ := unstructured.NestedString(object.Object, "spec", "group")
		return group != "inference.networking.k8s.io"
	})
	g, ctx := errgroup.WithContext(ctx)
	for _, object := range append(objects, inference...) {
		g.Go(func() error {
			if object.GetKind() == crdKind {
				return c.installCRD(ctx, object)
			}
			return c.applier.apply(ctx, object, "")
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("install the Gateway API: %w", err)
	}
	return nil
}
