// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	yamlv3 "go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/gate"
	"github.com/lockstep-rollouts/lockstep/plugin/policyfile"
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
		"groups at the new revision after each batch: 1,2,4 or 25%,50%,100% (default: 1; blue-green: 100%)")
	flags.DurationVar(&f.minReady, "min-ready", 0, "how long a group must have been ready before it counts")
	flags.DurationVar(&f.progressDeadline, "progress-deadline", 0,
		"time without a new ready group after which the release fails (default: the driver's, 30m)")
	completeFlag(cmd, "style", "canary", "blue-green", "partition")
	f.traffic.add(cmd)
}

// policy returns the policy of the file and the flags. The driver validates it.
func (f *policyFlags) policy() (*pb.ReleasePolicy, error) {
	policy, err := f.readFile()
	if err != nil {
		return nil, err
	}
	if f.style != "" {
		style, err := policyfile.ParseEnum(f.style, pb.Style(0).Descriptor().Values())
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
		policy.Batches = []string{"1"}
		if policy.GetStyle() == pb.Style_STYLE_BLUE_GREEN {
			policy.Batches = []string{"100%"}
		}
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
	// An empty file has no root, and is an empty policy.
	for _, root := range document.Content {
		if f.gates, err = takeGates(root); err != nil {
			return nil, exit.Usagef("policy %s: %w", f.file, err)
		}
		if err := policyfile.Read(root, policy); err != nil {
			return nil, exit.Usagef("policy %s: %w", f.file, err)
		}
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
	// A second document would be ignored, although its author expects an effect.
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
	// The contract's policy has no field gates, and its reader would refuse the key.
	root.Content = rest
	if list == nil {
		return nil, nil
	}
	return gate.Parse(list)
}
