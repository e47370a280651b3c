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
)

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
