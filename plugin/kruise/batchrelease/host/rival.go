// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/lockstep-rollouts/lockstep/plugin/host"
)

// rivalName is the webhook configuration that every installation of Kruise's manager has, because the manager needs it to start.
const rivalName = "kruise-rollout-mutating-webhook-configuration"

// errRival is the error of Run if Kruise's manager is installed.
var errRival = errors.New("MutatingWebhookConfiguration " + rivalName + " exists, so Kruise Rollouts' own manager is installed here. " +
	"It panics when it meets a BatchRelease for a LeaderWorkerSet, so this host does not run beside it. Either release through a RolloutTarget " +
	"(lockstep kruise), or remove Kruise's Deployment and its webhook configurations; its CRDs are all that this host needs")

func rival() *metav1.PartialObjectMetadata {
	return host.Metadata(schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "MutatingWebhookConfiguration"})
}

// alone returns errRival if Kruise's manager is installed.
func alone(ctx context.Context, config *rest.Config) error {
	c, err := metadata.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	configurations := schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingwebhookconfigurations"}
	_, err = c.Resource(configurations).Get(ctx, rivalName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("look for Kruise Rollouts' manager: %w", err)
	default:
		return errRival
	}
}
