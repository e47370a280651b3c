// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"regexp"
	"strconv"

	yamlv3 "go.yaml.in/yaml/v3"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

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
