// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	kjson "sigs.k8s.io/json"

	"github.com/lockstep-rollouts/lockstep/plugin/policyfile"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// ownFields are those under trafficRouting.plugins that are not of the ReleasePolicy.
type ownFields struct {
	Workload  json.RawMessage `json:"workload"`
	OnFailure string          `json:"onFailure"`
}

// take fills c from the fields under trafficRouting.plugins.
func (c *Config) take(raw json.RawMessage, upgrades []string) error {
	rest := map[string]json.RawMessage{}
	if err := decodeAt(routingPlace, raw, &rest); err != nil {
		return err
	}
	names := []string{"workload", "onFailure"}
	maps.DeleteFunc(rest, func(field string, _ json.RawMessage) bool { return slices.Contains(names, field) })
	said := ownFields{OnFailure: "Abort"}
	if len(raw) > 0 {
		if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &said); err != nil {
			return typeError(routingPlace, err)
		}
	}
	if c.WaitOnFailure = said.OnFailure == "Wait"; !c.WaitOnFailure && said.OnFailure != "Abort" {
		return routingPlace.errorf("onFailure", "%q: want Abort or Wait", said.OnFailure)
	}
	var err error
	if c.Policy, err = readPolicy(rest, upgrades); err != nil {
		return fmt.Errorf("%s: %w", routingPlace, err)
	}
	if c.Workload, err = readWorkload(said.Workload); err != nil {
		return err
	}
	if c.Workload == "" {
		return routingPlace.errorf("workload", "is required: name the LeaderWorkerSet or DisaggregatedSet here. The steps of %s need the traffic-router plugin "+
			"beside them, which watches the Rollout between them", PluginName)
	}
	return c.checkSteps()
}

// checkSteps rejects steps that split requests without traffic routing.
func (c *Config) checkSteps() error {
	if c.Policy.GetTraffic() != nil {
		return c.checkWeights()
	}
	for i, s := range c.Steps {
		for _, split := range []struct {
			field string
			set   bool
		}{{"weight", s.Weight != nil}, {"headers", s.Headers != nil}, {"mirror", s.Mirror != nil}} {
			if split.set {
				return stepPlace(i).errorf(split.field, "nothing splits the requests of %s: configure `traffic` in %s, or remove this field",
					c.Workload, routingPlace)
			}
		}
	}
	return nil
}

// checkWeights rejects a weight that is impossible, for which its step would wait forever.
func (c *Config) checkWeights() error {
	if c.Policy.GetStyle() != pb.Style_STYLE_PARTITION {
		return nil
	}
	all := false
	for _, i := range slices.Sorted(maps.Keys(c.Steps)) {
		s := c.Steps[i]
		all = all || s.Upgrade == "100%"
		if all && s.Weight != nil && *s.Weight != 100 {
			return stepPlace(i).errorf("weight", "is %d, but every group of %s has been replaced in place by then, so that all requests "+
				"go to the new revision: set 100, or remove this field", *s.Weight, c.Workload)
		}
	}
	return nil
}

// readPolicy reads the fields of the policy, which the driver validates when a release begins.
func readPolicy(said map[string]json.RawMessage, upgrades []string) (*pb.ReleasePolicy, error) {
	p := &pb.ReleasePolicy{}
	raw, err := json.Marshal(said)
	if err == nil {
		err = policyfile.ReadJSON(raw, p)
	}
	if p.GetStyle() == pb.Style_STYLE_UNSPECIFIED {
		p.Style = pb.Style_STYLE_CANARY
	}
	// The steps are the batches, by which the status and messages count.
	if len(p.GetBatches()) == 0 {
		p.Batches = upgrades
	}
	if len(p.GetBatches()) == 0 {
		// No step upgrades anything: the release is one promotion.
		p.Batches = []string{"100%"}
	}
	return p, err
}
