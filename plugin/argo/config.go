// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	kjson "sigs.k8s.io/json"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/native"
	"github.com/lockstep-rollouts/lockstep/plugin/policyfile"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// PluginName is what both plugins are called in Rollouts and in Argo's ConfigMap.
const PluginName = "lockstep/lws"

// Config is a Rollout's configuration of its release.
type Config struct {
	// Workload is the name of the workload in the Rollout's namespace, as plugin.NameFor returns it.
	Workload string
	// Policy is the complete release policy. Nil means it could not be read, see Unfit, so that releases are ended but none begins.
	Policy *pb.ReleasePolicy
	// WaitOnFailure is set if a failed release waits for a user instead of failing the step.
	WaitOnFailure bool
	// Unfit is why no release may begin, or nil if one may.
	Unfit error
	// Steps are those of this plugin, by their index in the Rollout.
	Steps map[int]Step
	// Ignored names the fields of Argo's own that have no effect, and why.
	Ignored string
}

// step has the fields of a step.
type step struct {
	Upgrade *scalar            `json:"upgrade"`
	Weight  *int32             `json:"weight"`
	Headers *[]json.RawMessage `json:"headers"`
	Mirror  *int32             `json:"mirror"`
	Promote *bool              `json:"promote"`
}

// scalar is a number of groups or a percentage, with or without quotes: YAML decodes 3 as a number and 25% as text.
type scalar string

// UnmarshalJSON accepts any value, which is then validated in an error that names the field.
func (s *scalar) UnmarshalJSON(raw []byte) error {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		raw = []byte(text)
	}
	*s = scalar(raw)
	return nil
}

// place is the path of a part of the configuration, for error messages.
type place string

const routingPlace place = "spec.strategy.canary.trafficRouting.plugins[" + PluginName + "]"

func stepPlace(index int) place {
	return place(fmt.Sprintf("step %d (spec.strategy.canary.steps[%d].plugin.config)", index+1, index))
}

func (p place) errorf(field, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %s", p, field, fmt.Sprintf(format, args...))
}

// readConfig returns a Rollout's configuration, nil for a Rollout that does not use this plugin. Errors name the place and the field. A
// field of Argo's own that does not work here, by the findings, is no error: no release begins with it, and one in flight continues.
func readConfig(ro *v1alpha1.Rollout, findings []native.Field) (*Config, error) {
	if ro.Spec.Strategy.BlueGreen != nil && ro.Annotations[AnnotationFirst] != "" {
		return nil, fmt.Errorf("spec.strategy.blueGreen: can't release a workload, since Argo calls no plugin and points the active Service "+
			"at the Rollout's own pods: use spec.strategy.canary with style: BlueGreen under %s", routingPlace)
	}
	if !namesPlugin(ro) {
		return nil, nil //nolint:nilnil // The Rollout does not use this plugin.
	}
	canary := ro.Spec.Strategy.Canary
	c := &Config{Steps: map[int]Step{}}
	for i, s := range canary.Steps {
		if !isOwnStep(s) {
			continue
		}
		var config step
		at := stepPlace(i)
		if err := decodeAt(at, s.Plugin.Config, &config); err != nil {
			return nil, err
		}
		read, err := config.read(at)
		if err != nil {
			return nil, err
		}
		c.Steps[i] = read
	}
	if err := c.take(routingConfig(canary), upgradeTargets(canary.Steps, c.Steps)); err != nil {
		return nil, err
	}
	if len(c.Steps) == 0 {
		return nil, fmt.Errorf("spec.strategy.canary.steps: Argo would promote every change without a step of %s: "+
			"add at least one, for example plugin: {name: %[1]s, config: {promote: true}}", PluginName)
	}
	c.Unfit, c.Ignored = c.judge(ro, findings), native.Ignored(findings)
	return c, nil
}

// namesPlugin reports whether a Rollout names this plugin.
func namesPlugin(ro *v1alpha1.Rollout) bool {
	canary := ro.Spec.Strategy.Canary
	return canary != nil && (routingConfig(canary) != nil || slices.ContainsFunc(canary.Steps, isOwnStep))
}

// routingConfig returns the configuration under trafficRouting.plugins, or nil if there is none.
func routingConfig(canary *v1alpha1.CanaryStrategy) json.RawMessage {
	if canary.TrafficRouting == nil {
		return nil
	}
	return canary.TrafficRouting.Plugins[PluginName]
}

// isOwnStep reports whether a step is one of this plugin.
func isOwnStep(s v1alpha1.CanaryStep) bool { return s.Plugin != nil && s.Plugin.Name == PluginName }

// ReadLenient is readConfig with the fields that the type knows. With an error it also returns what can be read of the configuration, so that a mistake in a
// step neither ends the hold on the workload nor loses an abort. That is nil if the workload's name can't be read.
func ReadLenient(ro *v1alpha1.Rollout) (*Config, error) { return readLenient(ro, judgeTyped(ro)) }

func readLenient(ro *v1alpha1.Rollout, findings []native.Field) (*Config, error) {
	config, err := readConfig(ro, findings)
	if err == nil || ro.Spec.Strategy.Canary == nil {
		return config, err
	}
	var said ownFields
	_ = kjson.UnmarshalCaseSensitivePreserveInts(routingConfig(ro.Spec.Strategy.Canary), &said) // What can't be read is empty.
	name, _ := readWorkload(said.Workload)
	if name == "" {
		return nil, err
	}
	return &Config{Workload: name, Unfit: err}, err
}

// readWorkload returns the name of a workload, as plugin.NameFor does, of NAME or {kind: KIND, name: NAME}. It is "" if none is named.
func readWorkload(raw json.RawMessage) (string, error) {
	var ref struct {
		Kind string `json:"kind"`
		Name string `json:"name"`
	}
	if len(raw) == 0 {
		return "", nil
	}
	if json.Unmarshal(raw, &ref.Name) != nil {
		// A misspelt kind would otherwise name a LeaderWorkerSet.
		if unknown, err := kjson.UnmarshalStrict(raw, &ref); err != nil || len(unknown) > 0 {
			return "", routingPlace.errorf("workload", "want NAME of a LeaderWorkerSet, or {kind: DisaggregatedSet, name: NAME}: got %s", raw)
		}
	}
	if ref.Name == "" {
		return "", nil
	}
	if strings.Contains(ref.Name, "/") {
		return "", routingPlace.errorf("workload", "%q is no name: to name a kind, write {kind: DisaggregatedSet, name: NAME}", ref.Name)
	}
	name, err := plugin.NameFor(ref.Kind, ref.Name)
	if err != nil {
		return "", routingPlace.errorf("workload", "%v", err)
	}
	return name, nil
}

// upgradeTargets returns the targets of the steps in their order, without repetitions in a row.
func upgradeTargets(all []v1alpha1.CanaryStep, steps map[int]Step) []string {
	var targets []string
	for i := range all {
		u := steps[i].Upgrade
		if u != "" && (len(targets) == 0 || targets[len(targets)-1] != u) {
			targets = append(targets, u)
		}
	}
	return targets
}

// decodeAt decodes one place, and rejects unknown fields.
func decodeAt(at place, raw json.RawMessage, into any) error {
	if len(raw) == 0 {
		return nil
	}
	// Argo's CRD takes any config, so only this check finds a misspelt field.
	unknown, err := kjson.UnmarshalStrict(raw, into)
	if err != nil {
		return typeError(at, err)
	}
	if len(unknown) > 0 {
		return fmt.Errorf("%s: %w", at, unknown[0])
	}
	return nil
}

// typeError names the field of an error of package json, and what it wants.
func typeError(at place, err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return at.errorf(cmp.Or(wrong.Field, "config"), "want %s, got %s", wrong.Type.Kind(), wrong.Value)
	}
	return fmt.Errorf("%s: %w", at, err)
}

// read validates a step's own fields.
func (s *step) read(at place) (Step, error) {
	out := Step{Weight: s.Weight, Mirror: s.Mirror, Promote: s.Promote != nil && *s.Promote}
	if s.Upgrade == nil && s.Weight == nil && s.Headers == nil && s.Mirror == nil && s.Promote == nil {
		return Step{}, fmt.Errorf("%s: nothing to do: set upgrade, weight, headers, mirror or promote", at)
	}
	if s.Upgrade != nil {
		out.Upgrade = string(*s.Upgrade)
		if !isQuantity(out.Upgrade) {
			return Step{}, at.errorf("upgrade", wantQuantity, out.Upgrade)
		}
	}
	for name, value := range map[string]*int32{"weight": s.Weight, "mirror": s.Mirror} {
		if value != nil && (*value < 0 || *value > 100) {
			return Step{}, at.errorf(name, "%d: want 0 to 100", *value)
		}
	}
	if s.Headers != nil {
		matches := make([]*pb.HeaderMatch, 0, len(*s.Headers))
		for i, raw := range *s.Headers {
			match, err := readHeader(at, i, raw)
			if err != nil {
				return Step{}, err
			}
			matches = append(matches, match)
		}
		out.Headers = &matches
	}
	return out, nil
}

// readHeader reads a header as the contract has it: a name with exact, regex or cookie.
func readHeader(at place, i int, raw json.RawMessage) (*pb.HeaderMatch, error) {
	field, match := fmt.Sprintf("headers[%d]", i), &pb.HeaderMatch{}
	if err := policyfile.ReadJSON(raw, match); err != nil {
		return nil, at.errorf(field, "want a name with one of exact, regex and cookie: %v", err)
	}
	switch {
	case match.GetName() == "":
		return nil, at.errorf(field+".name", "is required")
	case match.GetValue() == nil:
		return nil, at.errorf(field, "want one of exact, regex and cookie")
	}
	return match, nil
}

const wantQuantity = "%s: want a number of groups (2) or a percentage of them (25%%)"

// isQuantity reports whether s is a number of groups or a percentage of them.
func isQuantity(s string) bool {
	digits, percent := strings.CutSuffix(s, "%")
	n, err := strconv.ParseUint(digits, 10, 31)
	return err == nil && (!percent || n <= 100)
}
