// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/plugin/informer"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// setTraffic makes the write that was announced.
func (a *Applier) setTraffic(ctx context.Context, s *observe.Snapshot, t plan.SetTraffic) (bool, error) {
	w := s.Traffic.Look(t.Desired).Write
	if w == nil {
		return false, nil
	}
	objects := a.observer.Router.Cache(w.Key.Kind)
	resource := objects.Source().Resource
	cached := func() metav1.Object {
		object, _ := apimeta.Accessor(informer.Get[any](objects, types.NamespacedName{Namespace: s.Key.Namespace, Name: w.Key.Name}))
		return object // nil if it is not in the cache
	}
	got, err := SendTraffic(ctx, a.dynamic.Resource(resource).Namespace(s.Key.Namespace), w)
	switch {
	case w.Verb == traffic.Delete:
		return a.awaitDeleted(ctx, s.Key, resource.Resource, "", w.Key.String(), err, func() bool {
			now := cached()
			return now == nil || string(now.GetUID()) != w.UID || now.GetDeletionTimestamp() != nil
		})
	case w.Verb == traffic.Create && apierrors.IsAlreadyExists(err):
		// Another driver created it, or an earlier request whose response was lost. The next observation shows whose it is.
		if a.awaitCondition(ctx, resource.Resource, informer.AnyVersion, func() bool { return cached() != nil }, s.Key) == nil {
			return false, nil
		}
	}
	if err != nil {
		return false, fmt.Errorf("%s %s %s/%s: %w", w.Verb, w.Key.Kind, s.Key.Namespace, w.Key.Name, explainError(err))
	}
	return true, awaitVersion(ctx, a, resource.Resource, got, w.Verb == traffic.Patch, cached, s.Key)
}

// SendTraffic makes one request. It fails with a conflict if the object has changed since the observation that the write was computed from.
func SendTraffic(ctx context.Context, client dynamic.ResourceInterface, w *traffic.Write) (*unstructured.Unstructured, error) {
	// An older API would silently drop an unknown field: the name by which added rules are recognized, or the percentage of
	// a mirror.
	const strict = metav1.FieldValidationStrict
	switch w.Verb {
	case traffic.Create:
		return client.Create(ctx, &unstructured.Unstructured{Object: w.Body}, //nolint:wrapcheck // the caller adds verb and object
			metav1.CreateOptions{FieldManager: traffic.FieldManager, FieldValidation: strict})
	case traffic.Delete:
		return nil, client.Delete(ctx, w.Key.Name, metav1.DeleteOptions{ //nolint:wrapcheck // as above
			Preconditions: &metav1.Preconditions{UID: ptr.To(types.UID(w.UID)), ResourceVersion: &w.ResourceVersion},
		})
	default:
		raw, err := json.Marshal(w.Body)
		if err != nil {
			return nil, fmt.Errorf("encode patch: %w", err)
		}
		return client.Patch(ctx, w.Key.Name, types.MergePatchType, raw, //nolint:wrapcheck // as above
			metav1.PatchOptions{FieldManager: traffic.FieldManager, FieldValidation: strict})
	}
}

// explainError adds the remedy for an outdated Gateway API.
func explainError(err error) error {
	if (apierrors.IsBadRequest(err) || apierrors.IsInvalid(err)) && strings.Contains(err.Error(), "unknown field") {
		return fmt.Errorf("%w (the installed Gateway API is too old, upgrade it: named rules are in its standard channel since v1.4, the percentage of a mirror since v1.3)", err)
	}
	return err
}
