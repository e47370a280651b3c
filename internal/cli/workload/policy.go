// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	yamlv3 "go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/gate"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// policyFlags are the flags of a ReleasePolicy. Fields without a flag come from a file.
type policyFlags struct {
	traffic trafficFlags

	file             string
	style            string
	batches          []string
	minReady         time.Duration
	progressDeadline time.Duration

	// gates are those of the file.
	gates []gate.Gate
}

func (f *policyFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.file, "policy", "",
		"YAML or JSON file with a lockstep.v1alpha1.ReleasePolicy; each flag overrides its field")
	flags.StringVar(&f.style, "style", "",
		"how groups are replaced: canary, blue-green or partition (default: canary)")
	flags.StringSliceVar(&f.batches, "batches", nil,
		"groups at the new revision after each batch: percentages (25%,50%,100%) or counts (1,2,4)")
	flags.DurationVar(&f.minReady, "min-ready", 0, "how long a group must have been ready before it counts")
	flags.DurationVar(&f.progressDeadline, "progress-deadline", 0,
		"time without a new ready group after which the release fails (default: the driver's, 30m)")
	complete(cmd, "style", "canary", "blue-green", "partition")
	f.traffic.add(cmd)
}

// policy returns the policy of the file and the flags. The driver validates it.
func (f *policyFlags) policy() (*pb.ReleasePolicy, error) {
	policy, err := f.readFile()
	if err != nil {
		return nil, err
	}
	if f.style != "" {
		style, err := parseEnum(f.style, pb.Style(0).Descriptor().Values())
		if err != nil {
			return nil, exit.Usagef("--style: %w", err)
		}
		policy.Style = pb.Style(style.Number())
	}
	if len(f.batches) > 0 {
		policy.Batches = f.batches
	}
	given := f.traffic.flags.Changed // a zero overrides the file, too
	if given("min-ready") {
		policy.MinReady = durationpb.New(f.minReady)
	}
	if given("progress-deadline") {
		policy.ProgressDeadline = durationpb.New(f.progressDeadline)
	}
	if err := f.traffic.set(policy); err != nil {
		return nil, err
	}
	if policy.GetStyle() == pb.Style_STYLE_UNSPECIFIED {
		// It replaces no stable group before the promotion.
		policy.Style = pb.Style_STYLE_CANARY
	}
	if len(policy.GetBatches()) == 0 {
		return nil, exit.Usagef("a release needs --batches, for example --batches 25%%,50%%,100%%")
	}
	return policy, nil
}

func (f *policyFlags) readFile() (*pb.ReleasePolicy, error) {
	policy := &pb.ReleasePolicy{}
	if f.file == "" {
		return policy, nil
	}
	text, err := os.ReadFile(f.file)
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	document, err := onlyDocument(text)
	if err != nil {
		return nil, exit.Usagef("policy %s: %w", f.file, err)
	}
	for _, root := range document.Content {
		if f.gates, err = takeGates(root); err != nil {
			return nil, exit.Usagef("policy %s: %w", f.file, err)
		}
		if err := normalize(root, policy.ProtoReflect().Descriptor()); err != nil {
			return nil, exit.Usagef("policy %s: %w", f.file, err)
		}
	}
	if text, err = yamlv3.Marshal(document); err != nil {
		return nil, exit.Usagef("policy %s: %w", f.file, err)
	}
	text, err = yaml.YAMLToJSON(text)
	if err != nil {
		return nil, exit.Usagef("policy %s: %w", f.file, err)
	}
	if err := protojson.Unmarshal(text, policy); err != nil {
		return nil, exit.Usagef("policy %s: %w", f.file, err)
	}
	return policy, nil
}

// onlyDocument parses a file with one YAML document.
func onlyDocument(text []byte) (*yamlv3.Node, error) {
	var document, second yamlv3.Node
	decoder := yamlv3.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&document); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("parse: %w", err)
	}
	switch err := decoder.Decode(&second); {
	case errors.Is(err, io.EOF):
		return &document, nil
	case err != nil:
		return nil, fmt.Errorf("parse: %w", err)
	default:
		return nil, fmt.Errorf("line %d: a second document: a policy file has one", second.Line)
	}
}

// takeGates removes the key "gates" of a policy file, which is for the host, and returns its gates.
func takeGates(root *yamlv3.Node) ([]gate.Gate, error) {
	if root.Kind != yamlv3.MappingNode {
		return nil, nil
	}
	var list *yamlv3.Node
	rest := make([]*yamlv3.Node, 0, len(root.Content))
	for i := 0; i+1 < len(root.Content); i += 2 {
		switch key, value := root.Content[i], root.Content[i+1]; {
		case key.Value != "gates":
			rest = append(rest, key, value)
		case list != nil:
			return nil, fmt.Errorf("line %d: gates is set twice, first in line %d", key.Line, list.Line)
		default:
			list = value
		}
	}
	root.Content = rest
	if list == nil {
		return nil, nil
	}
	return gate.Parse(list)
}

// parsePolicy validates a policy without a driver.
func parsePolicy(policy *pb.ReleasePolicy) (record.Policy, error) {
	parsed, violations := record.ParsePolicy(policy)
	if len(violations) > 0 {
		return parsed, exit.Usagef("%s: %s", violations[0].Field, violations[0].Description)
	}
	return parsed, nil
}

// normalize rewrites the enums and durations of a YAML message as ProtoJSON spells them: STYLE_CANARY for canary, 90s for 1m30s.
// An error has the line, and the values that are allowed.
func normalize(node *yamlv3.Node, message protoreflect.MessageDescriptor) error {
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

func normalizeField(value *yamlv3.Node, field protoreflect.FieldDescriptor) error {
	switch {
	case field.IsList() && value.Kind == yamlv3.ScalarNode && value.Tag != "!!null":
		return fmt.Errorf("want a list: [%s]", value.Value)
	case field.IsMap() || field.IsList() || value.Kind == yamlv3.AliasNode || value.Tag == "!!null":
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

func normalizeEnum(value *yamlv3.Node, values protoreflect.EnumValueDescriptors) error {
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
