// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package policyfile reads a policy as users write it, in YAML or JSON: fields by either of their names, a style as canary, BlueGreen or
// STYLE_CANARY, a duration as 90s, and a number of groups without quotes.
//
//	policy := &pb.ReleasePolicy{}
//	err := policyfile.ReadJSON([]byte(`{"style": "blue-green", "batches": [1, 4], "minReady": "1m30s"}`), policy)
package policyfile

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	yamlv3 "go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"sigs.k8s.io/yaml"
)

// Read reads a message from a YAML mapping, which it rewrites. An error has the line, the path of the field, and what is allowed.
func Read(node *yamlv3.Node, into proto.Message) error {
	if err := normalize(node, into.ProtoReflect().Descriptor(), ""); err != nil {
		return err
	}
	text, err := yamlv3.Marshal(node)
	if err == nil {
		text, err = yaml.YAMLToJSON(text)
	}
	if err == nil {
		err = protojson.Unmarshal(text, into)
	}
	return err //nolint:wrapcheck // the caller names the file
}

// ReadJSON reads a message from JSON. An error has the path of the field, and what is allowed.
func ReadJSON(raw []byte, into proto.Message) error {
	var content any
	if err := json.Unmarshal(raw, &content); err != nil {
		return err //nolint:wrapcheck // the caller names the place
	}
	node := &yamlv3.Node{}
	if err := node.Encode(content); err != nil { // nodes without lines
		return err //nolint:wrapcheck // the caller names the place
	}
	return Read(node, into)
}

// normalize rewrites the enums, durations and numbers of groups of a message as ProtoJSON spells them. path is that of the message, with a
// final dot.
func normalize(node *yamlv3.Node, message protoreflect.MessageDescriptor, path string) error {
	if node.Kind != yamlv3.MappingNode {
		return nil // protojson refuses it where it does not fit.
	}
	seen := map[protoreflect.Name]int{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if key.Value == "<<" {
			continue // a merge of an anchor
		}
		field := message.Fields().ByJSONName(key.Value)
		if field == nil {
			field = message.Fields().ByTextName(key.Value)
		}
		if field == nil {
			return errorAt(key, "unknown field %q; want one of %s", path+key.Value, strings.Join(fieldNames(message), ", "))
		}
		if first := seen[field.Name()]; first > 0 {
			return errorAt(key, "%s is set twice, first in line %d", path+key.Value, first)
		}
		seen[field.Name()] = key.Line
		if err := normalizeField(value, field, path+key.Value); err != nil {
			return err
		}
	}
	return nil
}

// errorAt returns an error with the line of a node, if it is from a file.
func errorAt(node *yamlv3.Node, format string, args ...any) error {
	if node.Line == 0 {
		return fmt.Errorf(format, args...)
	}
	return fmt.Errorf("line %d: %w", node.Line, fmt.Errorf(format, args...))
}

func normalizeField(value *yamlv3.Node, field protoreflect.FieldDescriptor, path string) error {
	switch {
	case field.IsList() && value.Kind == yamlv3.ScalarNode && value.Tag != "!!null":
		return errorAt(value, "%s: want a list: [%s]", path, value.Value)
	case field.IsMap() || value.Kind == yamlv3.AliasNode || value.Tag == "!!null":
		return nil
	case field.Kind() == protoreflect.StringKind:
		for _, scalar := range append(value.Content, value) {
			// A number of groups is a string in the contract, as 25% is.
			if scalar.Tag == "!!int" {
				scalar.SetString(scalar.Value)
			}
		}
		return nil
	case field.Enum() != nil && value.Tag == "!!str":
		found, err := ParseEnum(value.Value, field.Enum().Values())
		if err != nil {
			return errorAt(value, "%s: %w", path, err)
		}
		value.SetString(string(found.Name()))
		return nil
	case field.Message() == nil:
		return nil
	case field.Message().FullName() != "google.protobuf.Duration":
		return normalize(value, field.Message(), path+".")
	}
	d, err := time.ParseDuration(value.Value)
	if err != nil || d < 0 {
		return errorAt(value, "%s: %q is not a duration; want for example 90s or 30m", path, value.Value)
	}
	// ProtoJSON has durations in seconds, with at most nine decimals.
	value.SetString(fmt.Sprintf("%.9fs", d.Seconds()))
	return nil
}

// ParseEnum returns the value that a user spells as in "blue-green", "BlueGreen" or "STYLE_BLUE_GREEN".
func ParseEnum(text string, values protoreflect.EnumValueDescriptors) (protoreflect.EnumValueDescriptor, error) {
	prefix := strings.TrimSuffix(string(values.Get(0).Name()), "UNSPECIFIED")
	fold := func(s string) string {
		return strings.NewReplacer("-", "", "_", "").Replace(strings.ToUpper(s))
	}
	var allowed []string
	for i := range values.Len() {
		name := string(values.Get(i).Name())
		short := strings.TrimPrefix(name, prefix)
		if fold(text) == fold(name) || fold(text) == fold(short) {
			return values.Get(i), nil
		}
		// The zero value is not for users to choose.
		if i > 0 {
			allowed = append(allowed, strings.ReplaceAll(strings.ToLower(short), "_", "-"))
		}
	}
	return nil, fmt.Errorf("%q is not allowed; want one of %s", text, strings.Join(allowed, ", "))
}

func fieldNames(message protoreflect.MessageDescriptor) []string {
	names := make([]string, 0, message.Fields().Len())
	for i := range message.Fields().Len() {
		names = append(names, message.Fields().Get(i).JSONName())
	}
	return names
}
