// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// errUndecodable is the error of an object that the API server accepts, and its type does not. A cache of the type would fail to list all
// others with it.
var errUndecodable = errors.New("it does not decode")

// Decode decodes an object. On error, into has the metadata and the workload that the object names.
func Decode(o *unstructured.Unstructured, into any) error {
	err := convert(o.Object, into)
	if err == nil {
		return nil
	}
	reflect.ValueOf(into).Elem().SetZero()
	named, _, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "workloadRef") // another type names none
	_ = convert(map[string]any{"metadata": o.Object["metadata"], "spec": map[string]any{"workloadRef": named}}, into)
	return fmt.Errorf("%w: %w", errUndecodable, err)
}

func convert(from, into any) error {
	raw, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(raw, into)
	}
	return err //nolint:wrapcheck // Decode does.
}

// Object returns an object that stands for a kind.
func Object(kind schema.GroupVersionKind) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(kind)
	return o
}

func newList(kind schema.GroupVersionKind) *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(listOf(kind))
	return list
}

func listOf(kind schema.GroupVersionKind) schema.GroupVersionKind {
	kind.Kind += "List"
	return kind
}

// decoded returns an object of a cache as its type, as Decode fills it.
func decoded(scheme *runtime.Scheme, o client.Object) client.Object {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return o
	}
	into, _ := scheme.New(u.GroupVersionKind())
	typed, ok := into.(client.Object)
	if !ok {
		return o
	}
	_ = Decode(u, typed)
	return typed
}

// decoder is a client that decodes the objects of one kind, of which the cache has unstructured ones.
type decoder struct {
	client.Client

	kind schema.GroupVersionKind
}

// Get fails for an object that does not decode.
func (d decoder) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if kind, err := d.GroupVersionKindFor(o); err != nil || kind != d.kind {
		return d.Client.Get(ctx, key, o, opts...) //nolint:wrapcheck // A client's own error.
	}
	u := Object(d.kind)
	if err := d.Client.Get(ctx, key, u, opts...); err != nil {
		return err //nolint:wrapcheck // A client's own error.
	}
	return Decode(u, o)
}

// List also lists objects that do not decode, as Decode fills them.
func (d decoder) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if kind, err := d.GroupVersionKindFor(list); err != nil || kind != listOf(d.kind) {
		return d.Client.List(ctx, list, opts...) //nolint:wrapcheck // A client's own error.
	}
	all := newList(d.kind)
	if err := d.Client.List(ctx, all, opts...); err != nil {
		return err //nolint:wrapcheck // A client's own error.
	}
	objects := make([]runtime.Object, 0, len(all.Items))
	for i := range all.Items {
		objects = append(objects, decoded(d.Scheme(), &all.Items[i]))
	}
	return meta.SetList(list, objects) //nolint:wrapcheck // They are of the list's type.
}

// reconciler returns the Reconciler, with an event on each object that names a workload and does not decode.
func (c Controller) reconciler(m manager.Manager, logger *slog.Logger) reconcile.Reconciler {
	of, events := &Reporting{Of: c.Reconciler(m, decoder{m.GetClient(), c.API.Kind}), Logger: logger}, m.GetEventRecorder(c.Name)
	return reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		result, err := of.Reconcile(ctx, request)
		if !errors.Is(err, errUndecodable) {
			return result, err
		}
		u := Object(c.API.Kind)
		if err := m.GetClient().Get(ctx, request.NamespacedName, u); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
		if c.Workload(decoded(m.GetScheme(), u)) != "" {
			events.Eventf(u, nil, corev1.EventTypeWarning, "Undecodable", "Release", "%s", Note(err.Error()+": correct it"))
		}
		return reconcile.Result{}, reconcile.TerminalError(err) // a correction reconciles it
	})
}
