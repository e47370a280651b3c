// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package manifests reads objects from YAML and JSON, to run preflight without a cluster.
//
//	set := manifests.NewSet("default")
//	err := set.Add("vllm.yaml", file)
//	inventory, err := set.Inventory(workload)
package manifests

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"

	yamlv3 "go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/preflight"
	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Set is the objects of a number of files.
type Set struct {
	objects []object
	// namespace is the default namespace.
	namespace string
}

// object is an object and its position in a file.
type object struct {
	*unstructured.Unstructured

	file string
	node *yamlv3.Node
}

// NewSet returns an empty set. namespace is that of objects without one.
func NewSet(namespace string) *Set { return &Set{namespace: namespace} }

// Add adds the objects of a file; those of a List one by one.
func (s *Set) Add(file string, text []byte) error {
	for d := yamlv3.NewDecoder(bytes.NewReader(text)); ; {
		var document yamlv3.Node
		err := d.Decode(&document)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		if len(document.Content) == 1 {
			if err := s.add(file, document.Content[0]); err != nil {
				return fmt.Errorf("read %s: %w", file, err)
			}
		}
	}
}

func (s *Set) add(file string, node *yamlv3.Node) error {
	if node.Kind != yamlv3.MappingNode {
		return nil // an empty document, or only a comment
	}
	text, err := yamlv3.Marshal(node)
	if err != nil {
		return fmt.Errorf("line %d: %w", node.Line, err)
	}
	fields := map[string]any{}
	if err := yaml.Unmarshal(text, &fields); err != nil {
		return fmt.Errorf("line %d: %w", node.Line, err)
	}
	u := &unstructured.Unstructured{Object: fields}
	if items := child(node, "items"); u.IsList() && items != nil {
		for _, item := range items.Content {
			if err := s.add(file, item); err != nil {
				return err
			}
		}
		return nil
	}
	if u.GetNamespace() == "" && !clusterScoped[u.GetKind()] && u.GetName() != "" {
		u.SetNamespace(s.namespace)
	}
	s.objects = append(s.objects, object{u, file, node})
	return nil
}

// clusterScoped are the kinds without a namespace that rules read.
var clusterScoped = map[string]bool{"Node": true}

// Workloads returns the LeaderWorkerSets and DisaggregatedSets, in the order of the files. A DisaggregatedSet has its kind, and the spec of its
// entry role.
func (s *Set) Workloads() ([]*lws.LeaderWorkerSet, error) {
	var all []*lws.LeaderWorkerSet
	for _, o := range s.objects {
		if o.GetKind() == plugin.KindDisaggregatedSet {
			set, err := disaggregatedSet(o)
			if err != nil {
				return nil, err
			}
			all = append(all, &lws.LeaderWorkerSet{TypeMeta: set.TypeMeta, ObjectMeta: set.ObjectMeta, Spec: set.Spec.Roles[0].Spec})
		}
		if o.GetKind() != "LeaderWorkerSet" {
			continue
		}
		if o.GetAPIVersion() != lws.GroupVersion.String() {
			return nil, fmt.Errorf("%s: the LeaderWorkerSet has apiVersion %q, want %q", o.file, o.GetAPIVersion(), lws.GroupVersion)
		}
		w := &lws.LeaderWorkerSet{}
		if err := decode(o.Object, w, yaml.DisallowUnknownFields); err != nil {
			return nil, fmt.Errorf("%s: read the LeaderWorkerSet: %w", o.file, err)
		}
		if n := ptr.Deref(w.Spec.Replicas, 1); n < 0 {
			return nil, fmt.Errorf("%s: LeaderWorkerSet %s has %d replicas", o.file, w.Name, n)
		}
		all = append(all, w)
	}
	return all, nil
}

// disaggregatedSet decodes a DisaggregatedSet. A newer LWS may know more fields.
func disaggregatedSet(o object) (*disaggregated.DisaggregatedSet, error) {
	set := &disaggregated.DisaggregatedSet{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, set); err != nil {
		return nil, fmt.Errorf("%s: read the DisaggregatedSet: %w", o.file, err)
	}
	if set.APIVersion != disaggregated.GroupVersion.String() || len(set.Spec.Roles) == 0 {
		return nil, fmt.Errorf("%s: DisaggregatedSet %s has apiVersion %q and %d roles, want %q and at least one",
			o.file, set.Name, set.APIVersion, len(set.Spec.Roles), disaggregated.GroupVersion)
	}
	return set, nil
}

// roles returns the roles of a DisaggregatedSet, and the number of its slices.
func (s *Set) roles(w *lws.LeaderWorkerSet) (all []preflight.Role, slicesOf int, err error) {
	for _, o := range s.objects {
		if o.GetKind() != w.Kind || w.Kind != plugin.KindDisaggregatedSet || o.GetName() != w.Name || o.GetNamespace() != w.Namespace {
			continue
		}
		set, err := disaggregatedSet(o)
		if err != nil {
			return nil, 0, err
		}
		n, _, err := unstructured.NestedFloat64(o.Object, "spec", "slices") // YAML's number; the Go types of LWS v0.9.0 lack it
		if err != nil {
			return nil, 0, fmt.Errorf("%s: read the DisaggregatedSet: %w", o.file, err)
		}
		for _, role := range set.Spec.Roles {
			all = append(all, preflight.NewRole(set, role, nil))
		}
		return all, int(n), nil
	}
	return nil, 0, nil
}

// decode decodes an object.
func decode(fields map[string]any, into any, options ...yaml.JSONOpt) error {
	text, err := yaml.Marshal(fields)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	if err := yaml.Unmarshal(text, into, options...); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	return nil
}

// of returns the objects of a kind in a namespace, decoded as T. Empty namespace: all.
func of[T any](s *Set, kind, namespace string) ([]*T, error) {
	var all []*T
	for _, o := range s.objects {
		if o.GetKind() != kind || namespace != "" && o.GetNamespace() != namespace {
			continue
		}
		into := new(T)
		if err := decode(o.Object, into); err != nil {
			return nil, fmt.Errorf("%s: read %s %s: %w", o.file, kind, o.GetName(), err)
		}
		all = append(all, into)
	}
	return all, nil
}

// Locate returns the file and line of a field of an object, or of the deepest part of its path that exists. The line is 0 if no
// file has the object.
func (s *Set) Locate(ref *pb.ObjectRef, field string) (file string, line int) {
	for _, o := range s.objects {
		if o.GetKind() == ref.GetKind() && o.GetName() == ref.GetName() && o.GetNamespace() == ref.GetNamespace() {
			return o.file, lineOf(o.node, field)
		}
	}
	return "", 0
}

// steps matches the steps of a path: a name, ["a key"] or [an index].
var steps = regexp.MustCompile(`\["((?:[^"\\]|\\.)*)"\]|\[(\d+)\]|([^.\[\]]+)`)

func lineOf(node *yamlv3.Node, field string) int {
	line := node.Line
	for _, m := range steps.FindAllStringSubmatch(field, -1) {
		switch {
		case m[2] != "":
			i, err := strconv.Atoi(m[2])
			if err != nil || node.Kind != yamlv3.SequenceNode || i >= len(node.Content) {
				return line
			}
			node = node.Content[i]
			line = node.Line
		default:
			key, value := entry(node, m[1]+m[3])
			if key == nil {
				return line
			}
			line, node = key.Line, value
		}
	}
	return line
}

// entry returns a key of a mapping and its value, nil if it does not exist.
func entry(node *yamlv3.Node, name string) (key, value *yamlv3.Node) {
	if node.Kind != yamlv3.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == name {
			return node.Content[i], node.Content[i+1]
		}
	}
	return nil, nil
}

func child(node *yamlv3.Node, name string) *yamlv3.Node {
	_, value := entry(node, name)
	return value
}
