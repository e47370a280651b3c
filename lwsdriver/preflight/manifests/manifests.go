// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package manifests reads objects from YAML and JSON, to run preflight without a cluster.
//
//	set := manifests.NewSet("default")
//	err := set.Add("vllm.yaml", file)
//	inventories, err := set.Inventories("vllm")
package manifests

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/preflight"
)

// Set is the objects of a number of files.
type Set struct {
	objects []object
	// namespace is the default namespace.
	namespace string
}

// object is an object, and the file that it is in.
type object struct {
	*unstructured.Unstructured

	file string
}

// NewSet returns an empty set. namespace is that of objects without one.
func NewSet(namespace string) *Set { return &Set{namespace: namespace} }

// Add adds the objects of a file; those of a List one by one.
func (s *Set) Add(file string, text []byte) error {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		raw, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		var document any
		if err == nil {
			err = yaml.UnmarshalStrict(raw, &document)
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		s.add(file, document)
	}
}

func (s *Set) add(file string, document any) {
	fields, ok := document.(map[string]any)
	if !ok {
		return // an empty document, or only a comment
	}
	u := &unstructured.Unstructured{Object: fields}
	if items, ok := fields["items"].([]any); ok && u.IsList() {
		for _, item := range items {
			s.add(file, item)
		}
		return
	}
	// kubectl does the same with the namespace of its context.
	if u.GetNamespace() == "" && !clusterScoped[u.GetKind()] && u.GetName() != "" {
		u.SetNamespace(s.namespace)
	}
	s.objects = append(s.objects, object{u, file})
}

// clusterScoped are the kinds without a namespace that rules read.
var clusterScoped = map[string]bool{"Node": true}

// leaderWorkerSet returns the inventory of a LeaderWorkerSet, with nothing around it.
func leaderWorkerSet(o object) (*preflight.Inventory, error) {
	if o.GetAPIVersion() != lws.GroupVersion.String() {
		return nil, fmt.Errorf("%s: the LeaderWorkerSet has apiVersion %q, want %q", o.file, o.GetAPIVersion(), lws.GroupVersion)
	}
	w := &lws.LeaderWorkerSet{}
	// A misspelled field would change what a release does, so it is an error.
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, w, true); err != nil {
		return nil, fmt.Errorf("%s: read the LeaderWorkerSet: %w", o.file, err)
	}
	if n := ptr.Deref(w.Spec.Replicas, 1); n < 0 {
		return nil, fmt.Errorf("%s: LeaderWorkerSet %s has %d replicas", o.file, w.Name, n)
	}
	return &preflight.Inventory{Workload: w, Rolling: Rolling(w)}, nil
}

// disaggregatedSet returns the inventory of a DisaggregatedSet, with nothing around it. A newer LWS may know more fields.
func disaggregatedSet(o object) (*preflight.Inventory, error) {
	set := &disaggregated.DisaggregatedSet{}
	n, _, err := unstructured.NestedFloat64(o.Object, "spec", "slices") // YAML's number; the Go types of LWS v0.9.0 lack it
	if err = cmp.Or(err, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, set)); err != nil {
		return nil, fmt.Errorf("%s: read the DisaggregatedSet: %w", o.file, err)
	}
	if set.APIVersion != disaggregated.GroupVersion.String() || len(set.Spec.Roles) == 0 {
		return nil, fmt.Errorf("%s: DisaggregatedSet %s has apiVersion %q and %d roles, want %q and at least one",
			o.file, set.Name, set.APIVersion, len(set.Spec.Roles), disaggregated.GroupVersion)
	}
	w := &lws.LeaderWorkerSet{TypeMeta: set.TypeMeta, ObjectMeta: set.ObjectMeta, Spec: set.Spec.Roles[0].Spec}
	out := &preflight.Inventory{Workload: w, Slices: int(n)} // its children are replaced, so it has no rolling update
	for _, role := range set.Spec.Roles {
		out.Roles = append(out.Roles, preflight.NewRole(set, role, nil))
	}
	return out, nil
}

// of returns the objects of a kind in a namespace, decoded as T. An empty namespace means all.
func of[T any](s *Set, kind, namespace string) ([]*T, error) {
	var all []*T
	for _, o := range s.objects {
		if o.GetKind() != kind || namespace != "" && o.GetNamespace() != namespace {
			continue
		}
		into := new(T)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, into); err != nil {
			return nil, fmt.Errorf("%s: read %s %s: %w", o.file, kind, o.GetName(), err)
		}
		all = append(all, into)
	}
	return all, nil
}
