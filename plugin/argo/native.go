// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/plugin/native"
)

// nativeFields judges the fields of a Rollout's spec, by what Argo Rollouts v1.10.1 does with them for a Rollout whose pods are those of a
// LeaderWorkerSet. Refused are those with which Argo acts on placeholder pods, routes requests to nothing or ends a release, and those
// that promise a protection that only Argo's own pods get.
var nativeFields = native.Table{
	{Path: "replicas", Note: "0; more are placeholder pods, with an event"},
	{Path: "selector"},
	{Path: "template", Note: "never run"},
	{Path: "workloadRef", Verdict: native.Refused, Note: "a change of the LeaderWorkerSet would start nothing: use `template`"},
	{Path: "minReadySeconds", Verdict: native.Refused, Accepts: "0", Note: "counts Argo's pods: use `minReady`"},
	{Path: "rollbackWindow"},
	{Path: "revisionHistoryLimit"},
	{Path: "paused"},
	{Path: "progressDeadlineSeconds", Note: "2147483647 only"},
	{Path: "progressDeadlineAbort", Verdict: native.Refused, Note: "aborts a release that is healthy: use `progressDeadline` and `onFailure`"},
	{Path: "restartAt", Verdict: native.NoEffect, Note: "restarts Argo's pods: change an annotation in the LeaderWorkerSet's pod template"},
	{Path: "analysis"},
	{Path: "strategy.blueGreen", Verdict: native.Refused, Note: "Argo would call no plugin: use `strategy.canary` with `style: BlueGreen`"},

	{Path: "strategy.canary.steps[].setWeight", Note: "after an `upgrade`, with `traffic`"},
	{Path: "strategy.canary.steps[].pause"},
	{Path: "strategy.canary.steps[].experiment", Verdict: native.Refused, Note: "would start and test placeholder pods: use `upgrade` and an `analysis`"},
	{Path: "strategy.canary.steps[].analysis"},
	{Path: "strategy.canary.steps[].analysis.args[].valueFrom.podTemplateHashValue", Verdict: native.Refused, Note: noHash},
	{Path: "strategy.canary.steps[].setCanaryScale", Verdict: native.Refused, Note: "would start placeholder pods: use `upgrade`"},
	{Path: "strategy.canary.steps[].setHeaderRoute", Note: "after a step of the plugin, with `traffic`"},
	{Path: "strategy.canary.steps[].setMirrorRoute", Note: "the same"},
	{Path: "strategy.canary.steps[].setMirrorRoute.match", Verdict: native.Refused, Note: "a mirror has no matches: use `mirror` in a step of the plugin"},
	{Path: "strategy.canary.steps[].plugin"},

	{Path: "strategy.canary.trafficRouting.plugins[" + PluginName + "]", Note: "required"},
	{Path: "strategy.canary.trafficRouting.plugins", Verdict: native.Refused, Note: "another plugin " + otherRouter},
	{Path: "strategy.canary.trafficRouting.managedRoutes"},
	{Path: "strategy.canary.trafficRouting.maxTrafficWeight", Verdict: native.Refused, Accepts: "100", Note: "weights are percentages: remove it"},
	{Path: "strategy.canary.trafficRouting.istio", Verdict: native.Refused, Note: otherRouter},
	{Path: "strategy.canary.trafficRouting.nginx", Verdict: native.Refused, Note: otherRouter},
	{Path: "strategy.canary.trafficRouting.alb", Verdict: native.Refused, Note: otherRouter},
	{Path: "strategy.canary.trafficRouting.smi", Verdict: native.Refused, Note: otherRouter},
	{Path: "strategy.canary.trafficRouting.ambassador", Verdict: native.Refused, Note: otherRouter},
	{Path: "strategy.canary.trafficRouting.appMesh", Verdict: native.Refused, Note: otherRouter},
	{Path: "strategy.canary.trafficRouting.traefik", Verdict: native.Refused, Note: otherRouter},
	{Path: "strategy.canary.trafficRouting.apisix", Verdict: native.Refused, Note: otherRouter},

	{Path: "strategy.canary.analysis"},
	{Path: "strategy.canary.analysis.args[].valueFrom.podTemplateHashValue", Verdict: native.Refused, Note: noHash},
	{Path: "strategy.canary.stableService", Verdict: native.Refused, Note: "would select Argo's pods: use `traffic.stableService`"},
	{Path: "strategy.canary.canaryService", Verdict: native.Refused, Note: "would select Argo's pods: use `traffic.canaryService`"},
	{Path: "strategy.canary.pingPong", Verdict: native.Refused, Note: "would select Argo's pods: use `traffic`"},
	{Path: "strategy.canary.canaryMetadata", Verdict: native.Refused, Note: "would label Argo's pods: use `canaryLeaderMetadata`"},
	{Path: "strategy.canary.stableMetadata", Verdict: native.Refused, Note: "would label Argo's pods: use the LeaderWorkerSet's templates"},
	{Path: "strategy.canary.antiAffinity", Verdict: native.Refused, Note: "would keep Argo's pods apart: use `affinity` in the LeaderWorkerSet's templates"},
	{Path: "strategy.canary.maxSurge", Verdict: native.Refused, Note: "limits Argo's pods: use the LeaderWorkerSet's `maxSurge`"},
	{Path: "strategy.canary.maxUnavailable", Verdict: native.Refused, Note: "limits Argo's pods: use the LeaderWorkerSet's `maxUnavailable`"},
	{Path: "strategy.canary.minPodsPerReplicaSet", Verdict: native.Refused, Note: "counts Argo's pods: use a first step with `upgrade: N`"},
	{Path: "strategy.canary.replicaProgressThreshold", Verdict: native.Refused, Note: "counts Argo's pods: use `failureThreshold`"},
	{Path: "strategy.canary.dynamicStableScale", Verdict: native.Refused, Note: "scales Argo's pods: use `style: Partition`"},
	{Path: "strategy.canary.scaleDownDelaySeconds", Verdict: native.Refused, Note: "keeps Argo's pods: use `blueGreen.scaleDownDelay`"},
	{Path: "strategy.canary.scaleDownDelayRevisionLimit", Verdict: native.NoEffect, Note: "there are no old pods: remove it"},
	{Path: "strategy.canary.abortScaleDownDelaySeconds", Verdict: native.NoEffect, Note: "an abort drains and deletes the canary: see `traffic.drain`"},
}

const (
	otherRouter = "would route to Argo's pods, which do not exist: use `traffic`"
	noHash      = "the hash of placeholder pods: use the annotation `lockstep.dev/canary-revision`"
)

// judgeTyped judges the fields that the type knows.
func judgeTyped(ro *v1alpha1.Rollout) []native.Field {
	spec := ro.Spec
	spec.Template = corev1.PodTemplateSpec{} // any template is valid, and it is the largest part
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&spec)
	if err != nil {
		return []native.Field{{Path: "spec", Verdict: native.Refused, Note: fmt.Sprintf("can't be read: %v", err)}}
	}
	return nativeFields.Judge("spec", object)
}

// judge returns why no release may begin, nil if one may.
func (c *Config) judge(ro *v1alpha1.Rollout, findings []native.Field) error {
	err := errors.Join(checkDeadline(ro.Spec.ProgressDeadlineSeconds), native.Refusal(findings), checkNativeSteps(ro.Spec.Strategy.Canary.Steps, c))
	if err == nil {
		return nil
	}
	return fmt.Errorf("no release begins: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
}

// checkNativeSteps rejects Argo's own steps that route before there is something to route to, or beside a weight of this plugin.
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
		var err error
		switch own, ok := c.Steps[i]; {
		case ok:
			begun, upgraded = true, upgraded || own.Upgrade != ""
		case s.SetWeight != nil && weight > 0:
			err = fmt.Errorf("%s: step %d of %s has a weight: use one of the two in all steps", at("setWeight"), weight, PluginName)
		case s.SetWeight != nil:
			err = checkRoutable(at("setWeight"), c, upgraded, "`upgrade` in a step")
		case s.SetHeaderRoute != nil:
			err = checkRoutable(at("setHeaderRoute"), c, begun, "a step")
		case s.SetMirrorRoute != nil:
			err = checkRoutable(at("setMirrorRoute"), c, begun, "a step")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkRoutable rejects a step that routes requests without traffic routing, or before the step that it needs.
func checkRoutable(at place, c *Config, after bool, needs string) error {
	switch {
	case c.Policy.GetTraffic() == nil:
		return fmt.Errorf("%s: nothing splits the requests of %s: configure `traffic` in %s, or remove this step", at, c.Workload, routingPlace)
	case !after:
		return fmt.Errorf("%s: there is nothing to route to yet: put %s of %s before it", at, needs, PluginName)
	}
	return nil
}

// nativeWeight returns the weight that Argo's setWeight steps ask for at the Rollout's current step, or false if there is none, or a later
// step of this plugin has another one. Argo's controller sends 0 while it has no canary pods.
func nativeWeight(ro *v1alpha1.Rollout) (int32, bool) {
	steps := ro.Spec.Strategy.Canary.Steps
	// After the last step, Argo's index is the number of steps.
	for i := min(ReadFacts(ro).Index, len(steps)-1); i >= 0; i-- {
		var config step
		switch {
		case isOwnStep(steps[i]) && json.Unmarshal(steps[i].Plugin.Config, &config) == nil && config.Weight != nil:
			return 0, false
		case steps[i].SetWeight != nil:
			return *steps[i].SetWeight, true
		case steps[i] == v1alpha1.CanaryStep{}:
			return 0, true // setWeight: 0, whose pointer gob drops
		}
	}
	return 0, false
}

// defaultProgressDeadline is Argo's, in seconds.
const defaultProgressDeadline = 600

// endless is a progressDeadlineSeconds that never expires.
const endless = 1<<31 - 1

// checkDeadline rejects a Rollout whose own progress deadline can expire. Argo counts from the last change of the step index, so
// a running plugin step is no progress, however many groups become ready. After the deadline it never calls the step again, even if the
// deadline is raised or the Rollout retried, or it aborts the Rollout.
func checkDeadline(seconds *int32) error {
	s := ptr.Deref(seconds, defaultProgressDeadline)
	if s == endless {
		return nil
	}
	return fmt.Errorf("the Rollout's progressDeadlineSeconds is %d (Argo's default is %d), which Argo counts for each step, whatever "+
		"becomes ready in it, and after which it never runs the step again: set spec.progressDeadlineSeconds: %d; the release has a "+
		"deadline of its own (progressDeadline)", s, defaultProgressDeadline, endless)
}
