// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package router

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
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/informer"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// Write makes one request and returns when the cache has observed it. It fails with a conflict if the object has changed since the
// observation that the write was computed from.
func (r *Router) Write(ctx context.Context, namespace string, w *traffic.Write) (wrote bool, err error) {
	cached := func() metav1.Object {
		object, err := apimeta.Accessor(informer.Get[any](r.sources[w.Key.Kind], types.NamespacedName{Namespace: namespace, Name: w.Key.Name}))
		if err != nil {
			return nil // not in the cache
		}
		return object
	}
	client := r.client.Resource(r.sources[w.Key.Kind].Source().Resource).Namespace(namespace)
	got, err := sendWrite(ctx, client, w)
	switch {
	case w.Verb == traffic.Delete && apierrors.IsNotFound(err):
		// Another client deleted it. Without waiting, the next look would request the same delete again.
		return false, r.until(ctx, w, "", func() bool { now := cached(); return now == nil || string(now.GetUID()) != w.UID })
	case w.Verb == traffic.Create && apierrors.IsAlreadyExists(err):
		// Another driver created it, or an earlier request whose response was lost. The next look shows whose it is.
		if r.until(ctx, w, informer.AnyVersion, func() bool { return cached() != nil }) == nil {
			return false, nil
		}
		return false, fmt.Errorf("%s %s/%s: %w", w.Verb, namespace, w.Key.Name, err)
	case err != nil:
		return false, fmt.Errorf("%s %s %s/%s: %w", w.Verb, w.Key.Kind, namespace, w.Key.Name, explainError(err))
	case w.Verb == traffic.Delete:
		return true, r.until(ctx, w, "", func() bool {
			now := cached()
			return now == nil || string(now.GetUID()) != w.UID || now.GetDeletionTimestamp() != nil
		})
	}
	return true, r.until(ctx, w, got.GetResourceVersion(), func() bool { return showsWrite(cached(), got) })
}

func sendWrite(ctx context.Context, client dynamic.ResourceInterface, w *traffic.Write) (*unstructured.Unstructured, error) {
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

// showsWrite reports whether the cached object is the written one or newer.
func showsWrite(now, wrote metav1.Object) bool {
	if now == nil || now.GetUID() != wrote.GetUID() {
		// An object with another UID was created after the write.
		return now != nil || wrote.GetDeletionTimestamp() != nil
	}
	order, err := resourceversion.CompareResourceVersion(now.GetResourceVersion(), wrote.GetResourceVersion())
	// A version that can't be compared must not stop the release. The next write has its own precondition.
	return err != nil || order >= 0
}

// until waits until the cache shows what the API server has answered. Until it does, it counts as stale.
func (r *Router) until(ctx context.Context, w *traffic.Write, version string, done func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, catchUpTimeout, drivererr.New(pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE,
		"%s was written, but the cache has not observed it within %s", w.Key, catchUpTimeout))
	defer cancel()
	err := r.changes.Await(ctx, done, w.Key.Kind)
	if err != nil {
		r.sources[w.Key.Kind].Source().NoteBehind(version, done)
	}
	return err
}
