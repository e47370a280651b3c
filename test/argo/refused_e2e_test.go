// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"testing"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/stretchr/testify/assert"
)

// An invalid step fails and names the invalid field. It has no effect, and the controller continues with other Rollouts.
//
// Proves (test): Argo: published rights; unreadable steps; its progress deadline.
func TestStepRefused(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, config string
		words        []string
	}{
		{"unknown-field", "upgrade: 25%, wieght: 25", []string{"wieght"}},
		{"nothing-to-do", "", []string{"upgrade"}},
		{"weight-without-traffic", "upgrade: 25%, weight: 25", []string{"traffic"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			e := newRelease(t, step(test.config)+step("promote: true"))
			before := e.Identities()
			e.edit("v2")
			r := e.await("the step fails", func(r *v1alpha1.Rollout) bool { return ran(r, 0).Phase == v1alpha1.StepPluginPhaseFailed })
			for _, word := range append(test.words, "step 1") {
				assert.Contains(t, ran(r, 0).Message, word)
			}
			t.Log(ran(r, 0).Message)
			e.awaitAborted("v1")
			e.same(before)
		})
	}
}

// What Argo does to its own pods has no meaning here: an event says what to use instead, at once, and a release does not begin.
//
// Proves (test): Argo: the traffic-router plugin is required; what Argo does to its pods is refused.
func TestNativeFeaturesRefused(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, step, spec, canary string
		words                    []string
	}{
		{"setCanaryScale", "- setCanaryScale: {replicas: 2}\n", "", "", []string{"steps[1].setCanaryScale", "`upgrade`"}},
		{"experiment", "- experiment: {templates: [{name: new, specRef: canary}]}\n", "", "", []string{"steps[1].experiment", "analysis"}},
		{"setWeight-without-traffic", "- setWeight: 50\n", "", "", []string{"steps[1].setWeight", "`traffic`"}},
		{"minReadySeconds", "", "\nminReadySeconds: 5", "", []string{"minReadySeconds", "minReady"}},
		{"progressDeadlineAbort", "", "\nprogressDeadlineAbort: true", "", []string{"progressDeadlineAbort", "`onFailure`"}},
		{"budget", "", "", `"maxSurge": 1, "maxUnavailable": 0`, []string{"canary.maxSurge", "canary.maxUnavailable"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			e := newRelease(t, step("upgrade: 25%")+test.step+step("promote: true"), withSpec("progressDeadlineSeconds: 2147483647"+test.spec))
			e.patch(`{"spec": {"strategy": {"canary": {` + test.canary + `}}}}`)
			e.awaitSaid(name, test.words...)
			before := e.Identities()
			e.edit("v2")
			e.await("the first step fails", func(r *v1alpha1.Rollout) bool { return ran(r, 0).Phase == v1alpha1.StepPluginPhaseFailed })
			e.awaitAborted("v1")
			e.same(before)
		})
	}
}

// A field that is set in mid-release neither aborts nor promotes it, and one without effect refuses none.
//
// Proves: Argo Rollouts: the other verbs in docs/argo-rollouts.md.
func TestNativeFieldsInMidRelease(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters, slow())
	e.patch(`{"spec": {"strategy": {"canary": {"abortScaleDownDelaySeconds": 60}}}}`)
	e.awaitSaid(name, "abortScaleDownDelaySeconds", "`traffic.drain`")
	e.edit("v2")
	e.awaitPause(1)
	e.patch(`{"spec": {"progressDeadlineSeconds": 86400, "strategy": {"canary": {"maxSurge": 1}}}}`)
	e.awaitSaid(name, "no release begins", "canary.maxSurge", "progressDeadlineSeconds is 86400")
	e.mustHave("v2", 0, 1)
	e.argo("promote", name)
	e.awaitPause(3)
	e.argo("promote", "--full", name)
	e.awaitRest("v2")
}

// Without a step of the plugin Argo would promote every change: the workload stays under hold.
//
// Proves: Argo Rollouts: the other verbs in docs/argo-rollouts.md.
func TestStepRequired(t *testing.T) {
	t.Parallel()
	e := newRelease(t, "  []")
	e.awaitSaid(name, "spec.strategy.canary.steps", "add at least one")
	before := e.Identities()
	e.edit("v2")
	e.await("Argo promotes", func(r *v1alpha1.Rollout) bool {
		return r.Spec.Template.Annotations["lockstep.dev/revision"] != "" && r.Status.StableRS == r.Status.CurrentPodHash
	})
	e.awaitSaid(name, "waits under hold: spec.strategy.canary.steps")
	assert.NotContains(t, e.get(t.Context()).Spec.Template.Annotations["lockstep.dev/revision"], ".", "the Rollout started over")
	e.same(before)
	e.MustRest("v1")
	e.rollout(quarters)
	e.awaitPause(1)
	e.rollout("  []")
	e.await("Argo promotes", func(r *v1alpha1.Rollout) bool { return r.Status.StableRS == r.Status.CurrentPodHash })
	e.touched("without steps", 2)
	e.mustHave("v2", 0, 1)
	e.same(before)
}

// Without the traffic-router plugin nothing would watch the Rollout between its steps.
//
// Proves (test): Argo: the traffic-router plugin is required; what Argo does to its pods is refused.
func TestTrafficRouterRequired(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	before := e.Identities()
	e.patch(`{"spec": {"strategy": {"canary": {"trafficRouting": null}}}}`)
	e.awaitSaid(name, "trafficRouting.plugins[lockstep/lws]", "workload: is required")
	e.edit("v2")
	e.stays(before)
	e.patch(`{"spec": {"strategy": {"canary": {"trafficRouting": {"plugins": {"lockstep/lws": {"workload": "` + name + `"}}}}}}}`)
	e.awaitPause(1)
	e.argo("promote", "--full", name)
	e.awaitRest("v2")
}

// A Rollout that is scaled, by an autoscaler or a person, runs placeholder pods, and the release is not affected.
//
// Proves: Argo: undo and steps skipped in every way; a scaled Rollout.
func TestRolloutScaled(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters, slow())
	e.edit("v2")
	e.awaitPause(1)
	e.patch(`{"spec": {"replicas": 2}}`)
	e.awaitSaid(name, "spec.replicas is 2", "LeaderWorkerSet "+name)
	e.mustHave("v2", 0, 1)
	e.patch(`{"spec": {"replicas": 0}}`)
	e.argo("promote", "--full", name)
	e.awaitRest("v2")
}

// A Rollout whose progress deadline can end the steps for good is refused before anything moves.
//
// Proves (test): Argo: published rights; unreadable steps; its progress deadline.
func TestProgressDeadlineRefused(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, spec string }{
		{"default", "revisionHistoryLimit: 5"},
		{"short", "progressDeadlineSeconds: 600"},
		{"long", "progressDeadlineSeconds: 86400"}, // Argo counts it for each step
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			e := newRelease(t, quarters, withSpec(test.spec))
			before := e.Identities()
			e.edit("v2")
			r := e.await("the step fails", func(r *v1alpha1.Rollout) bool { return ran(r, 0).Phase == v1alpha1.StepPluginPhaseFailed })
			t.Log(ran(r, 0).Message)
			message := ran(r, 0).Message
			assert.Contains(t, message, "progressDeadlineSeconds", "%q does not name progressDeadlineSeconds", message)
			e.awaitAborted("v1")
			e.same(before)
			// The remedy in the message suffices.
			e.patch(`{"spec": {"progressDeadlineSeconds": 2147483647}}`)
			e.argo("retry", "rollout", name)
			e.awaitPause(1)
			e.mustHave("v2", 0, 1)
			e.argo("promote", "--full", name)
			e.awaitRest("v2")
		})
	}
}

// A second Rollout for the same workload is refused, and does not affect the first one.
//
// Proves: Argo Rollouts: the other verbs in docs/argo-rollouts.md.
func TestTwoRollouts(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters, slow())
	e.Apply(rolloutManifest("other", quarters))
	e.edit("v2")
	e.awaitPause(1)
	e.awaitSaid("other", name)
	e.mustHave("v2", 0, 1)
	e.argo("promote", "--full", name)
	e.awaitRest("v2")
	// The second one is deleted: the first one still owns the workload.
	e.delete("other")
	e.edit("v3")
	e.awaitPause(1)
	e.argo("promote", "--full", name)
	e.awaitRest("v3")
}
