// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// reader converts fields to those of the contract, and keeps the first error.
type reader struct{ err error }

func (r *reader) fail(field, format string, args ...any) {
	if r.err == nil {
		r.err = routingPlace.errorf(field, format, args...)
	}
}

// take fills c from the fields.
func (c *Config) take(say release, upgrades []string) error {
	name, err := readWorkload(say.Workload)
	if err != nil {
		return err
	}
	if name == "" {
		return routingPlace.errorf("workload", "is required: name the LeaderWorkerSet or DisaggregatedSet here. The steps of %s need the traffic-router plugin "+
			"beside them, which watches the Rollout between them", PluginName)
	}
	r := &reader{}
	c.Workload = name
	c.Policy = r.policy(say, upgrades)
	c.Manual = r.choice("trigger", say.Trigger, "Auto", "Manual") == "Manual"
	c.WaitOnFailure = r.choice("onFailure", say.OnFailure, "Abort", "Wait") == "Wait"
	c.Wait = DefaultWait
	if say.Wait != "" {
		c.Wait = r.duration("wait", say.Wait).AsDuration()
		if c.Wait > maxWait {
			r.fail("wait", "%s: want at most %s, because a step that waits occupies a worker of the controller", say.Wait, maxWait)
		}
	}
	if r.err != nil {
		return r.err
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

func (r *reader) policy(say release, upgrades []string) *pb.ReleasePolicy {
	p := &pb.ReleasePolicy{
		Style:            r.style(say.Style),
		Batches:          upgrades,
		ProgressDeadline: r.duration("progressDeadline", say.ProgressDeadline),
		MinReady:         r.duration("minReady", say.MinReady),
		RoleOrder:        say.RoleOrder,
	}
	if len(say.Batches) > 0 {
		p.Batches = nil
		for i, b := range say.Batches {
			p.Batches = append(p.Batches, r.quantity(fmt.Sprintf("batches[%d]", i), b))
		}
	}
	if len(p.GetBatches()) == 0 {
		// No step upgrades anything: the release is one promotion.
		p.Batches = []string{"100%"}
	}
	if say.FailureThreshold != "" {
		p.FailureThreshold = r.quantity("failureThreshold", say.FailureThreshold)
	}
	if m := say.CanaryLeaderMetadata; m != nil {
		p.CanaryLeaderMetadata = &pb.PodMetadata{Labels: m.Labels, Annotations: m.Annotations}
	}
	if say.Traffic != nil {
		p.Traffic = r.traffic(say.Traffic)
	}
	if say.BlueGreen != nil {
		p.BlueGreen = r.blueGreen(say.BlueGreen)
	}
	return p
}

func (r *reader) style(said string) pb.Style {
	switch r.choice("style", said, "Canary", "BlueGreen", "Partition") {
	case "BlueGreen":
		return pb.Style_STYLE_BLUE_GREEN
	case "Partition":
		return pb.Style_STYLE_PARTITION
	default:
		return pb.Style_STYLE_CANARY
	}
}

// choice reads one of several words. The first is the default.
func (r *reader) choice(field, said string, words ...string) string {
	if said == "" {
		return words[0]
	}
	if !slices.Contains(words, said) {
		r.fail(field, "%q: want one of %v", said, words)
	}
	return said
}

func (r *reader) quantity(field string, s scalar) string {
	if !quantity(s) {
		r.fail(field, "%s: want a number of groups (2) or a percentage of them (25%%)", s)
	}
	return string(s)
}

// duration reads "30s". Empty is unset.
func (r *reader) duration(field, said string) *durationpb.Duration {
	if said == "" {
		return nil
	}
	d, err := time.ParseDuration(said)
	if err != nil || d < 0 {
		r.fail(field, "%q: want a time such as 90s or 30m", said)
		return nil
	}
	return durationpb.New(d)
}

func (r *reader) traffic(t *traffic) *pb.TrafficPolicy {
	if t.StableService == "" {
		r.fail("traffic.stableService", "is required: the Service that selects the stable leaders")
	}
	p := &pb.TrafficPolicy{
		StableService: t.StableService, CanaryService: t.CanaryService,
		HttpRoutes: t.HTTPRoutes, GrpcRoutes: t.GRPCRoutes, Ingresses: t.Ingresses,
	}
	if i := t.InferencePool; i != nil {
		if i.Name == "" || i.CanaryEndpointPicker == "" {
			r.fail("traffic.inferencePool", "name and canaryEndpointPicker are required")
		}
		p.InferencePool = &pb.InferencePoolPolicy{
			Name: i.Name, CanaryEndpointPicker: i.CanaryEndpointPicker,
			CanaryEndpointPickerPort: i.CanaryEndpointPickerPort,
		}
	}
	if d := t.Drain; d != nil {
		p.Drain = &pb.DrainPolicy{
			Period: r.duration("traffic.drain.period", d.Period), Metric: d.Metric, MetricEndpoint: d.MetricEndpoint,
			Timeout: r.duration("traffic.drain.timeout", d.Timeout), Roles: d.Roles,
		}
	}
	if w := t.WarmUp; w != nil {
		if w.Endpoint == "" {
			r.fail("traffic.warmUp.endpoint", "is required, for example :8000/health")
		}
		p.WarmUp = &pb.WarmUpPolicy{
			Endpoint: w.Endpoint, Body: w.Body, Timeout: r.duration("traffic.warmUp.timeout", w.Timeout), Roles: w.Roles,
		}
	}
	return p
}

func (r *reader) blueGreen(b *blueGreen) *pb.BlueGreenPolicy {
	p := &pb.BlueGreenPolicy{
		Promotion: pb.BluePromotion_BLUE_PROMOTION_IN_PLACE, Force: b.Force,
		ScaleDownDelay: r.duration("blueGreen.scaleDownDelay", b.ScaleDownDelay),
	}
	if r.choice("blueGreen.promotion", b.Promotion, "InPlace", "Adopt") == "Adopt" {
		p.Promotion = pb.BluePromotion_BLUE_PROMOTION_ADOPT
	}
	return p
}
