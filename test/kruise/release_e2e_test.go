// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package kruise

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-rollouts/lockstep/test/grouptags"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// quarters are the steps of most tests. Kruise does not wait at the last one.
const quarters = `
- {replicas: 25%, pause: {}}
- {replicas: 50%, pause: {}}
- {replicas: 100%, pause: {}}
`

// Proves (smoke): Kruise: all steps of the example to Healthy.
func TestSteps(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.example("workload.yaml", "kruise/rollouttarget.yaml", "kruise/rollout.yaml")
	e.awaitPhase("Healthy")
	e.MustRest("v1")
	e.Edit("v2")
	e.awaitPause(1)
	e.MustHave("v1 v1 v1 v2")
	e.approve()
	e.awaitPause(2)
	e.MustHave("v1 v1 v2 v2")
	e.approve()
	e.awaitDone()
	e.MustRest("v2")
	e.Eventually("the target is at rest", func(ctx context.Context) error {
		s := e.target(ctx, name).Status
		if s.UpdatedReadyReplicas != groups || s.CurrentRevision != s.UpdateRevision || s.State != "Completed" {
			return fmt.Errorf("its status is %s", asJSON(s))
		}
		return nil
	})
	suite.AwaitEvents(t, e.Kube, e.Namespace, "RolloutTarget", name, "Normal BatchReady", "Normal Promoted")
}

// Proves (test): Kruise: rollback by edit; delete in mid-release.
func TestRollbackByEdit(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	before := e.Identities()
	e.Edit("v2")
	e.awaitPause(1)
	e.MustHave("v1 v1 v1 v2")
	e.Edit("v1")
	e.awaitDone()
	e.MustRest("v1")
	e.MustKeep(before, 0, 1, 2)
}

// Proves: Kruise: a second template.
func TestContinuousRelease(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	e.Edit("v2")
	e.awaitPause(1)
	e.MustHave("v1 v1 v1 v2")
	before := e.releasing()
	e.Edit("v3")
	// Until Kruise sees the new template, its status says that v2 waits, while the partition of v2's batch already holds for v3.
	e.awaitRollout("the release of v3", func(r *unstructured.Unstructured) bool {
		return field(r, "status", "canaryStatus", "canaryRevision") != before
	})
	e.awaitPause(1)
	e.MustHave("v1 v1 v1 v3")
	// That v3 was rolled back with the release that began with v2 does not keep it from another one.
	e.Edit("v1")
	e.awaitDone()
	e.MustRest("v1")
	e.Edit("v3")
	e.MustHave("v1 v1 v1 v3")
	e.awaitPause(1) // afterwards: until Kruise sees the template, its status is the one before
	e.approve()
	e.awaitPause(2)
	e.MustHave("v1 v1 v3 v3")
	e.approve()
	e.awaitDone()
	e.MustRest("v3")
}

// Proves: Kruise Rollouts: the other verbs in docs/kruise-rollouts.md.
func TestDisabledInMidRelease(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	e.Edit("v2")
	e.awaitPause(1)
	e.patch(rollouts, `{"spec":{"disabled":true}}`)
	e.awaitPhase("Disabled")
	// Kruise removes the partition, which is no step of a Rollout.
	e.awaitReady(name, metav1.ConditionFalse, "NotRequested")
	e.MustHave("v1 v1 v1 v2")
	e.end("promote", "--ignore-owner")
	e.MustRest("v2")
	e.patch(rollouts, `{"spec":{"disabled":false}}`)
	e.awaitPhase("Healthy")
	e.Edit("v3")
	e.awaitPause(1)
	e.MustHave("v2 v2 v2 v3")
}

// Proves (test): Kruise: rollback by edit; delete in mid-release.
func TestRolloutDeletedInMidRelease(t *testing.T) {
	t.Parallel()
	e := newRelease(t, quarters)
	e.Edit("v2")
	e.awaitPause(1)
	e.remove(rollouts)
	e.awaitReady(name, metav1.ConditionFalse, "NotRequested")
	e.MustHave("v1 v1 v1 v2")
	e.end("abort", "--ignore-owner")
	e.MustRest("v1")
}

var httpRoutes = schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "httproutes"}

const routed = `
apiVersion: v1
kind: Service
metadata: {name: vllm}
spec:
  selector: {leaderworkerset.sigs.k8s.io/name: vllm, leaderworkerset.sigs.k8s.io/worker-index: "0"}
  ports: [{name: http, port: 80, targetPort: 8000}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: vllm}
spec:
  parentRefs: [{name: gateway}]
  rules: [{backendRefs: [{name: vllm, port: 80}]}]
`

// Kruise distinguishes leaders by controller-revision-hash, which the target's revisions are.
//
// Proves (test): Kruise: routes by the leaders' revision; controller killed, a replica takes over.
func TestKruiseRoutesTraffic(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.Deploy(groups, nil)
	e.Apply(routed)
	e.Apply(target(name))
	e.Apply(rollout(`
- {replicas: 25%, traffic: 20%, pause: {}}
- {replicas: 50%, traffic: 60%, pause: {}}
- {replicas: 100%, pause: {}}
`, "trafficRoutings: [{service: vllm, gateway: {httpRouteName: vllm}, gracePeriodSeconds: 1}]"))
	e.awaitPhase("Healthy")
	e.MustRest("v1")
	e.Edit("v2")
	e.awaitPause(1)
	e.mustRoute("vllm 80, vllm-canary 20")
	e.mustSelect("vllm", "vllm-0 v1, vllm-1 v1, vllm-2 v1")
	e.mustSelect("vllm-canary", "vllm-3 v2")
	e.approve()
	e.awaitPause(2)
	e.mustRoute("vllm 40, vllm-canary 60")
	e.mustSelect("vllm", "vllm-0 v1, vllm-1 v1")
	e.mustSelect("vllm-canary", "vllm-2 v2, vllm-3 v2")
	e.Edit("v1")
	e.awaitDone()
	e.MustRest("v1")
	e.mustSelect("vllm", "vllm-0 v1, vllm-1 v1, vllm-2 v1, vllm-3 v1")
	e.Eventually("the canary Service is deleted", func(ctx context.Context) error {
		_, err := e.Kube.CoreV1().Services(e.Namespace).Get(ctx, "vllm-canary", metav1.GetOptions{})
		if err == nil {
			return errors.New("it is there")
		}
		return client.IgnoreNotFound(err)
	})
}

// mustRoute waits until the route's one rule has these weights.
func (e *env) mustRoute(want string) {
	e.T.Helper()
	e.Eventually("route "+want, func(ctx context.Context) error {
		route, err := e.Objects(httpRoutes).Get(ctx, e.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		rules, _, _ := unstructured.NestedSlice(route.Object, "spec", "rules")
		var got []string
		for _, rule := range rules {
			refs, _, _ := unstructured.NestedSlice(rule.(map[string]any), "backendRefs")
			for _, ref := range refs {
				got = append(got, fmt.Sprintf("%v %v", ref.(map[string]any)["name"], ref.(map[string]any)["weight"]))
			}
		}
		slices.Sort(got)
		if strings.Join(got, ", ") != want {
			return fmt.Errorf("it has %s", strings.Join(got, ", "))
		}
		return nil
	})
}

// mustSelect waits until a Service selects exactly these pods.
func (e *env) mustSelect(service, want string) {
	e.T.Helper()
	e.Eventually(service+" selects "+want, func(ctx context.Context) error {
		s, err := e.Kube.CoreV1().Services(e.Namespace).Get(ctx, service, metav1.GetOptions{})
		if err != nil {
			return err
		}
		pods, err := e.Kube.CoreV1().Pods(e.Namespace).List(ctx, metav1.ListOptions{LabelSelector: labels.SelectorFromSet(s.Spec.Selector).String()})
		if err != nil {
			return err
		}
		got := make([]string, 0, len(pods.Items))
		for _, p := range pods.Items {
			got = append(got, p.Name+" "+grouptags.OfGroup([]corev1.Pod{p}, 1))
		}
		slices.Sort(got)
		if strings.Join(got, ", ") != want {
			return fmt.Errorf("%v selects %s", s.Spec.Selector, strings.Join(got, ", "))
		}
		return nil
	})
}
