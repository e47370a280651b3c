// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package guard contains panics: one poisonous object must not end the process, and with it the releases of others. [Call] is for the
// root of a goroutine or of a callback, [Transform], [Indexers] and [Handler] are for those of informers. Each panic is logged with
// the object that it happened for, and counted.
package guard

import (
	"cmp"
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"
)

var panics = prometheus.NewCounterVec(prometheus.CounterOpts{
	Namespace: "lockstep", Name: "panics_total", Help: "Panics that were contained, by place.",
}, []string{"place"})

// Metrics returns the number of panics, by place.
func Metrics() prometheus.Collector { return panics }

// Call calls f. It returns a panic as an error, which names the object but not the cause: that is logged. Nil means the default logger.
func Call(log *slog.Logger, place, object string, f func()) (err error) {
	defer func() {
		cause := recover()
		if cause == nil {
			return
		}
		panics.WithLabelValues(place).Inc()
		cmp.Or(log, slog.Default()).Error("panic", slog.String("place", place), slog.String("object", object), slog.Any("panic", cause), slog.String("stack", string(debug.Stack())))
		err = fmt.Errorf("defect in the driver (%s %s): its log has the details, please report it", place, object)
	}()
	f()
	return nil
}

// Transform returns f, except that an object for which it panics is stored as instead returns it. Nil means unchanged. An error would keep
// the whole cache from being filled.
func Transform(f cache.TransformFunc, instead func(any) any) cache.TransformFunc {
	if f == nil {
		return nil
	}
	return func(obj any) (out any, err error) {
		if Call(nil, "transform", nameOf(obj), func() { out, err = f(obj) }) == nil {
			return out, err
		}
		if instead == nil {
			return obj, nil
		}
		return instead(obj), nil
	}
}

// Indexers returns the indexers, except that an object for which one panics is not in that index.
func Indexers(all cache.Indexers) cache.Indexers {
	guarded := make(cache.Indexers, len(all))
	for name, f := range all {
		guarded[name] = func(obj any) (keys []string, err error) {
			if Call(nil, "index "+name, nameOf(obj), func() { keys, err = f(obj) }) != nil {
				return nil, nil
			}
			return keys, err
		}
	}
	return guarded
}

// Handler returns h, except that its panics are contained.
func Handler(h cache.ResourceEventHandlerFuncs) cache.ResourceEventHandlerFuncs {
	const place = "event handler"
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { _ = Call(nil, place, nameOf(obj), func() { h.AddFunc(obj) }) },
		UpdateFunc: func(old, obj any) { _ = Call(nil, place, nameOf(obj), func() { h.UpdateFunc(old, obj) }) },
		DeleteFunc: func(obj any) { _ = Call(nil, place, nameOf(obj), func() { h.DeleteFunc(obj) }) },
	}
}

// nameOf returns the type, namespace and name of an object.
func nameOf(obj any) string {
	if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		return unknown.Key
	}
	meta, err := apimeta.Accessor(obj)
	if err != nil {
		return fmt.Sprintf("%T", obj)
	}
	return fmt.Sprintf("%T %s/%s", obj, meta.GetNamespace(), meta.GetName())
}
