// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package kruise

import (
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/native"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// rolloutFields judges the fields of a Rollout's spec, by what Kruise Rollouts v0.6.2 and v0.6.3 do with them for a RolloutTarget. Of
// such a kind, which it does not know, it replaces the pods in place whatever the style, and adds no metadata to them.
var rolloutFields = native.Table{
	{Path: "workloadRef"},
	{Path: "disabled"},
	{Path: "strategy.paused"},
	{Path: "strategy.canary.steps[].replicas"},
	{Path: "strategy.canary.steps[].pause"},
	{Path: "strategy.canary.steps[].traffic", Note: "with `trafficRoutings`"},
	{Path: "strategy.canary.steps[].matches", Note: "with `trafficRoutings`"},
	{Path: "strategy.canary.steps[].requestHeaderModifier", Note: "with `trafficRoutings`"},
	{Path: "strategy.canary.trafficRoutings"},
	{Path: "strategy.canary.failureThreshold"},
	{Path: "strategy.canary.patchPodTemplateMetadata", Verdict: native.Refused, Note: "groups get no other metadata: remove it"},
	{Path: "strategy.canary.enableExtraWorkloadForCanary", Verdict: native.Refused, Note: inPlace},
	{Path: "strategy.canary.trafficRoutingRef", Verdict: native.Refused, Note: "TrafficRouting objects do not fit a target: use `trafficRoutings`"},
	{Path: "strategy.canary.disableGenerateCanaryService", Verdict: native.Refused, Note: "would leave both revisions behind one Service: remove it"},
	{Path: "strategy.blueGreen", Verdict: native.Refused, Note: "groups are replaced in place: use `canary`"},
}

// planFields judges the fields of a BatchRelease's spec.releasePlan, which Kruise writes.
var planFields = native.Table{
	{Path: "batches[].canaryReplicas"},
	{Path: "batchPartition"},
	{Path: "rolloutID"},
	{Path: "failureThreshold"},
	{Path: "finalizingPolicy"},
	{Path: "patchPodTemplateMetadata", Verdict: native.Refused, Note: "groups get no other metadata: remove it"},
	{Path: "rollingStyle", Verdict: native.Refused, Accepts: "Partition", Note: inPlace},
	{Path: "enableExtraWorkloadForCanary", Verdict: native.Refused, Note: inPlace},
}

const inPlace = "groups are replaced in place: remove it (v1alpha1: annotation `rollouts.kruise.io/rolling-style: partition`)"

// unfit returns why no release begins with a Rollout and the BatchRelease that Kruise made of it, as the API server has them. It returns
// nil if one may. Either object may be nil.
func unfit(rollout, batchRelease map[string]any) error {
	plan, _ := specOf(batchRelease)["releasePlan"].(map[string]any)
	findings := append(rolloutFields.Judge("Rollout: spec", specOf(rollout)), planFields.Judge("BatchRelease: spec.releasePlan", plan)...)
	if err := native.Refusal(findings); err != nil {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED, "%v. Restore the old template, wait until the Rollout is Healthy, "+
			"correct the Rollout, and change the template again", err)
	}
	return nil
}

func specOf(object map[string]any) map[string]any {
	spec, _ := object["spec"].(map[string]any)
	return spec
}
