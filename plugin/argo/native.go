// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"fmt"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
)

// Argo's own features act on the pods of the Rollout's template, which do not exist here. setWeight, setHeaderRoute and
// setMirrorRoute are translated. Each of the others is refused, since it would have no effect, start placeholder pods, or point
// a Service at pods that do not exist.

// noEffect is why most of them are refused.
const noEffect = "has no effect, because the pods are those of the LeaderWorkerSet: "

// checkNative rejects what Argo does itself, and steps that would route requests to nothing.
func checkNative(ro *v1alpha1.Rollout, c *Config) error {
	canary := ro.Spec.Strategy.Canary
	for _, f := range []struct {
		set           bool
		path, instead string
	}{
		{canary.StableService != "", "strategy.canary.stableService", "would be pointed at pods that do not exist: remove it, and set traffic.stableService under " + string(routingPlace)},
		{canary.CanaryService != "", "strategy.canary.canaryService", "would be pointed at pods that do not exist: remove it, and set traffic.canaryService under " + string(routingPlace)},
		{canary.PingPong != nil, "strategy.canary.pingPong", noEffect + "remove it"},
		{canary.DynamicStableScale, "strategy.canary.dynamicStableScale", noEffect + "remove it; style Partition needs no additional groups"},
		{canary.CanaryMetadata != nil, "strategy.canary.canaryMetadata", noEffect + "use canaryLeaderMetadata under " + string(routingPlace)},
		{canary.StableMetadata != nil, "strategy.canary.stableMetadata", noEffect + "set labels in the LeaderWorkerSet's template"},
		{canary.ScaleDownDelaySeconds != nil, "strategy.canary.scaleDownDelaySeconds", noEffect + "use blueGreen.scaleDownDelay under " + string(routingPlace)},
		{ro.Spec.MinReadySeconds > 0, "minReadySeconds", noEffect + "use minReady under " + string(routingPlace)},
		{canary.TrafficRouting.MaxTrafficWeight != nil && *canary.TrafficRouting.MaxTrafficWeight != maxWeight,
			"strategy.canary.trafficRouting.maxTrafficWeight", "is not supported: weights are percentages"},
	} {
		if f.set {
			return fmt.Errorf("spec.%s: %s", f.path, f.instead)
		}
	}
	return checkNativeSteps(canary.Steps, c)
}

// maxWeight is the weight of all requests.
const maxWeight = 100

// checkNativeSteps rejects Argo's own steps that start pods, and those that route before there is something to route to.
func checkNativeSteps(steps []v1alpha1.CanaryStep, c *Config) error {
	weight := 0 // the number of the first step of this plugin with a weight
	for i := range steps {
		if weight == 0 && c.Steps[i].Weight != nil {
			weight = i + 1
		}
	}
	begun, upgraded := false, false
	for i, s := range steps {
		at := func(field string) place {
			return place(fmt.Sprintf("step %d (spec.strategy.canary.steps[%d].%s)", i+1, i, field))
		}
		switch own, ok := c.Steps[i]; {
		case ok:
			begun, upgraded = true, upgraded || own.Upgrade != ""
		case s.SetCanaryScale != nil:
			return fmt.Errorf("%s: would start placeholder pods: use `upgrade` in a step of %s", at("setCanaryScale"), PluginName)
		case s.Experiment != nil:
			return fmt.Errorf("%s: would start and test placeholder pods: upgrade a group in a step of %s, and use an analysis", at("experiment"), PluginName)
		case s.SetWeight != nil && weight > 0:
			return fmt.Errorf("%s: step %d of %s has a weight: use one of the two in all steps", at("setWeight"), weight, PluginName)
		case s.SetWeight != nil:
			if err := routable(at("setWeight"), c, upgraded, "`upgrade` in a step"); err != nil {
				return err
			}
		case s.SetHeaderRoute != nil:
			if err := routable(at("setHeaderRoute"), c, begun, "a step"); err != nil {
				return err
			}
		case s.SetMirrorRoute != nil && len(s.SetMirrorRoute.Match) > 0:
			return fmt.Errorf("%s: match is not supported: use `mirror` in a step of %s", at("setMirrorRoute"), PluginName)
		case s.SetMirrorRoute != nil:
			if err := routable(at("setMirrorRoute"), c, begun, "a step"); err != nil {
				return err
			}
		}
	}
	return nil
}

// routable rejects a step that routes requests without traffic routing, or before the step that it needs.
func routable(at place, c *Config, after bool, needs string) error {
	switch {
	case c.Policy.GetTraffic() == nil:
		return fmt.Errorf("%s: nothing splits the requests of %s: configure `traffic` in %s, or remove this step", at, c.Workload, routingPlace)
	case !after:
		return fmt.Errorf("%s: there is nothing to route to yet: put %s of %s before it", at, needs, PluginName)
	}
	return nil
}

// nativeWeight returns the weight that Argo's setWeight steps ask for at the Rollout's current step. False: there is none. Argo's
// controller sends 0 while it has no canary pods.
func nativeWeight(ro *v1alpha1.Rollout) (int32, bool) {
	steps := ro.Spec.Strategy.Canary.Steps
	for i := min(ReadFacts(ro).Index, len(steps)-1); i >= 0; i-- {
		switch {
		case steps[i].SetWeight != nil:
			return *steps[i].SetWeight, true
		case steps[i] == v1alpha1.CanaryStep{}:
			return 0, true // setWeight: 0, whose pointer gob drops
		}
	}
	return 0, false
}
