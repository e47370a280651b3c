// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lockstep-rollouts/lockstep/plugin/policyfile"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// fields are those under trafficRouting.plugins. Those that are not of this plugin are of the ReleasePolicy.
type fields map[string]json.RawMessage

// reader reads fields, and keeps the first error.
type reader struct {
	fields fields
	err    error
}

func (r *reader) fail(field, format string, args ...any) {
	if r.err == nil {
		r.err = routingPlace.errorf(field, format, args...)
	}
}

// take fills c from the fields.
func (c *Config) take(said fields, upgrades []string) error {
	r := &reader{fields: fields{}}
	// The reader removes what it has taken, and said stays as it is.
	maps.Copy(r.fields, said)
	c.Manual = r.choice("trigger", "Auto", "Manual") == "Manual"
	c.WaitOnFailure = r.choice("onFailure", "Abort", "Wait") == "Wait"
	c.Wait = r.wait()
	delete(r.fields, "workload")
	c.Policy = r.policy(upgrades)
	if r.err != nil {
		return r.err
	}
	var err error
	if c.Workload, err = readWorkload(said["workload"]); err != nil {
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

// policy reads what is left of the fields. The driver validates it: here is checked what would otherwise fail a step.
func (r *reader) policy(upgrades []string) *pb.ReleasePolicy {
	p := &pb.ReleasePolicy{}
	raw, err := json.Marshal(r.fields)
	if err == nil {
		err = policyfile.ReadJSON(raw, p)
	}
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("%s: %w", routingPlace, err)
	}
	if p.GetStyle() == pb.Style_STYLE_UNSPECIFIED {
		p.Style = pb.Style_STYLE_CANARY
	}
	for i, b := range p.GetBatches() {
		if !quantity(b) {
			r.fail(fmt.Sprintf("batches[%d]", i), wantQuantity, b)
		}
	}
	if f := p.GetFailureThreshold(); f != "" && !quantity(f) {
		r.fail("failureThreshold", wantQuantity, f)
	}
	// The steps are the batches, by which the status and messages count.
	if len(p.GetBatches()) == 0 {
		p.Batches = upgrades
	}
	if len(p.GetBatches()) == 0 {
		// No step upgrades anything: the release is one promotion.
		p.Batches = []string{"100%"}
	}
	t := p.GetTraffic()
	pool := t.GetInferencePool()
	switch {
	case t != nil && t.GetStableService() == "":
		r.fail("traffic.stableService", "is required: the Service that selects the stable leaders")
	case pool != nil && (pool.GetName() == "" || pool.GetCanaryEndpointPicker() == ""):
		r.fail("traffic.inferencePool", "name and canaryEndpointPicker are required")
	case t.GetWarmUp() != nil && t.GetWarmUp().GetEndpoint() == "":
		r.fail("traffic.warmUp.endpoint", "is required, for example :8000/health")
	}
	return p
}

// text takes a field that is text. Empty means not set.
func (r *reader) text(field string) (said string) {
	if raw := r.fields[field]; raw != nil && json.Unmarshal(raw, &said) != nil {
		r.fail(field, "want text, got %s", raw)
	}
	delete(r.fields, field)
	return said
}

// choice takes one of several words. The first is the default.
func (r *reader) choice(field string, words ...string) string {
	said := r.text(field)
	if said == "" {
		return words[0]
	}
	if !slices.Contains(words, said) {
		r.fail(field, "%q: want one of %v", said, words)
	}
	return said
}

// wait takes how long a step waits inside one call.
func (r *reader) wait() time.Duration {
	said := r.text("wait")
	if said == "" {
		return DefaultWait
	}
	d, err := time.ParseDuration(said)
	if err != nil || d < 0 || d > maxWait {
		r.fail("wait", "%q: want a time such as 20s, at most %s, because a step that waits occupies a worker of the controller", said, maxWait)
	}
	return d
}
