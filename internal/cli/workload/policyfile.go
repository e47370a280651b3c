// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"fmt"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// normalize rewrites the enums and durations of a YAML message as ProtoJSON spells them: STYLE_CANARY for canary, 90s for 1m30s.
// An error has the line, and the values that are allowed.
func normalize(node *yaml.Node, message protoreflect.MessageDescriptor) error {
	if node.Kind != yaml.MappingNode {
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
			return fmt.Errorf("line %d: unknown field %q; want one of %s", key.Line, key.Value, strings.Join(fieldNames(message), ", "))
		}
		if first := seen[field.Name()]; first > 0 {
			return fmt.Errorf("line %d: %s is set twice, first in line %d", key.Line, key.Value, first)
		}
		seen[field.Name()] = key.Line
		if err := normalizeField(value, field); err != nil {
			return fmt.Errorf("line %d: %s: %w", value.Line, key.Value, err)
		}
	}
	return nil
}

func normalizeField(value *yaml.Node, field protoreflect.FieldDescriptor) error {
	switch {
	case field.IsList() && value.Kind == yaml.ScalarNode && value.Tag != "!!null":
		return fmt.Errorf("want a list: [%s]", value.Value)
	case field.IsMap() || field.IsList() || value.Kind == yaml.AliasNode || value.Tag == "!!null":
		return nil
	case field.Enum() != nil && value.Tag == "!!str":
		return normalizeEnum(value, field.Enum().Values())
	case field.Message() == nil:
		return nil
	case field.Message().FullName() != "google.protobuf.Duration":
		return normalize(value, field.Message())
	}
	d, err := time.ParseDuration(value.Value)
	if err != nil {
		return fmt.Errorf("%q is not a duration; want for example 90s or 5m", value.Value)
	}
	value.SetString(fmt.Sprintf("%.9fs", d.Seconds()))
	return nil
}

func normalizeEnum(value *yaml.Node, values protoreflect.EnumValueDescriptors) error {
	found, err := parseEnum(value.Value, values)
	if err == nil {
		value.SetString(string(found.Name()))
	}
	return err
}

// parseEnum returns the value that a user spells as in "blue-green", "BlueGreen" or "STYLE_BLUE_GREEN".
func parseEnum(text string, values protoreflect.EnumValueDescriptors) (protoreflect.EnumValueDescriptor, error) {
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
		if i > 0 {
			allowed = append(allowed, strings.ReplaceAll(strings.ToLower(short), "_", "-"))
		}
	}
	return nil, fmt.Errorf("%q is not allowed; want one of %s", text, strings.Join(allowed, ", "))
}

func fieldNames(message protoreflect.MessageDescriptor) []string {
	names := make([]string, 0, message.Fields().Len())
	for i := range message.Fields().Len() {
		names = append(names, message.Fields().Get(i).TextName())
	}
	return names
}
