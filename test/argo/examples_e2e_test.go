// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/modelservers"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

var inferencePools = schema.GroupVersionResource{Group: "inference.networking.k8s.io", Version: "v1", Resource: "inferencepools"}

// example is a file of examples/, and the course of its Rollout's release.
type example struct {
	file string
	// before sets up what the file needs. It may change values that a user would change too.
	before func(e *env, manifest string) string
	// looks are called at the pauses, in order.
	looks []func(e *env)
}

var examples = []example{
	{
		file: "canary.yaml", before: withService,
		looks: []func(e *env){func(e *env) { e.mustHave("v2", 0, 1); e.mustShareOf("vllm", "vllm-leader", 10) }},
	},
	{
		file: "canary-inferencepool.yaml", before: withPickers,
		looks: []func(e *env){func(e *env) { e.mustHave("v2", 0, 1); e.mustShareOf("vllm", "vllm", 10) }},
	},
	{
		file: "header-ab.yaml", before: withService,
		looks: []func(e *env){func(e *env) {
			e.mustHave("v2", 0, 2)
			assert.Contains(e.T, asJSON(e.routeNamed(e.T.Context(), "vllm").Object["spec"]), "x-model-variant", "the route")
		}},
	},
	{
		file: "blue-green.yaml", before: withPrometheus,
		looks: []func(e *env){func(e *env) { e.mustHave("v2", 0, groups); e.mustShareOf("vllm", "vllm-leader", 100) }},
	},
	{
		file: "partition.yaml", before: asItIs,
		looks: []func(e *env){
			func(e *env) { e.mustHave("v2", 1, 0) },
			func(e *env) { e.mustHave("v2", 2, 0) },
		},
	},
}

// The published examples, unmodified.
//
// Proves: Argo: idle costs no request; a driver apart; handover; the examples.
func TestExamples(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("..", "..", "examples", "argo", "*.yaml"))
	if err != nil || len(files) != len(examples)+1 { // and service.yaml
		t.Errorf("%d files, %d examples: %v", len(files), len(examples), err)
	}
	for _, x := range examples {
		t.Run(strings.TrimSuffix(x.file, ".yaml"), func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			e.Apply(exampleFile(t, "workload.yaml"))
			e.Apply(x.before(e, exampleFile(t, "argo/"+x.file)))
			e.awaitRest("v1")
			e.edit("v2")
			for _, look := range x.looks {
				paused := e.await("a pause", func(r *v1alpha1.Rollout) bool { return r.Status.ControllerPause })
				look(e)
				e.argo("promote", name)
				// The next pause may come before the next poll.
				e.await("the pause is over", func(r *v1alpha1.Rollout) bool { return index(r) != index(paused) })
			}
			e.MustRest("v2")
			e.awaitRest("v2")
		})
	}
}

func exampleFile(t *testing.T, path string) string {
	t.Helper()
	raw := files.Read(t, filepath.Join("..", "..", "examples", path))
	return string(raw)
}

func asItIs(_ *env, manifest string) string { return manifest }

// withService adds the Service and the route, with Traefik's Gateway.
func withService(e *env, manifest string) string {
	e.T.Helper()
	gateway := fmt.Sprintf("parentRefs: [{name: %s, namespace: %s}]", cluster.GatewayName, cluster.GatewayNamespace)
	service := strings.Replace(exampleFile(e.T, "argo/service.yaml"), "parentRefs: [{name: public}]", gateway, 1)
	e.Apply(strings.Replace(service, "vllm.example.com", e.Namespace+".example.com", 1))
	return manifest
}

// withPrometheus serves the query of the analysis, and shortens its interval.
func withPrometheus(e *env, manifest string) string {
	e.T.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if query := r.FormValue("query"); !strings.Contains(query, `service="vllm-leader-canary"`) {
			http.Error(w, query, http.StatusBadRequest)
			return
		}
		_, _ = io.WriteString(w, `{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, "value": [1700000000, "0.4"]}]}}`)
	}))
	e.T.Cleanup(server.Close)
	manifest = strings.NewReplacer("http://prometheus.monitoring:9090", server.URL, "interval: 1m", "interval: 1s").Replace(manifest)
	return withService(e, manifest)
}

// withPickers gives both pools a picker, and accepts routes and pools as a gateway.
func withPickers(e *env, manifest string) string {
	e.T.Helper()
	for _, picker := range []string{"vllm-epp", "vllm-canary-epp"} {
		e.Apply(fmt.Sprintf(`
{apiVersion: v1, kind: Service, metadata: {name: %[1]s}, spec: {selector: {app: %[1]s}, ports: [{port: 9002}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: %[1]s, labels: {app: %[1]s}}, spec: {containers: [{name: c, image: c}]}}
`, picker))
	}
	e.acknowledge()
	return manifest
}

// acknowledge accepts every route and pool of the namespace as a gateway, until the test ends.
func (e *env) acknowledge() {
	e.T.Helper()
	for _, resource := range []schema.GroupVersionResource{httpRoutes, inferencePools} {
		client := e.Objects(resource)
		watcher, err := client.Watch(e.T.Context(), metav1.ListOptions{})
		require.NoError(e.T, err)
		e.T.Cleanup(watcher.Stop)
		go func() {
			for event := range watcher.ResultChan() {
				if object, ok := event.Object.(*unstructured.Unstructured); ok && object.GetDeletionTimestamp() == nil {
					accept(e.T.Context(), client.UpdateStatus, object)
				}
			}
		}()
	}
}

type updateStatus func(context.Context, *unstructured.Unstructured, metav1.UpdateOptions) (*unstructured.Unstructured, error)

// accept writes the status of a gateway that has accepted an object at its generation.
func accept(ctx context.Context, update updateStatus, object *unstructured.Unstructured) {
	condition := func(kind string) any {
		return map[string]any{
			"type": kind, "status": "True", "reason": kind, "message": "", "observedGeneration": object.GetGeneration(),
			"lastTransitionTime": "2026-01-01T00:00:00Z",
		}
	}
	conditions := []any{condition("Accepted"), condition("ResolvedRefs")}
	parent := map[string]any{"conditions": conditions, "parentRef": map[string]any{"name": "public"}}
	if object.GetKind() == "HTTPRoute" {
		parent["controllerName"] = "example.com/gateway"
	}
	if before := asJSON(object.Object["status"]); before == asJSON(map[string]any{"parents": []any{parent}}) {
		return
	}
	object.Object["status"] = map[string]any{"parents": []any{parent}}
	// A conflict: another event follows.
	_, _ = update(ctx, object, metav1.UpdateOptions{})
}

// The examples of model servers with Argo Rollouts: a canary of one group, its analysis and its promotion. One server after the other,
// because the nodes have GPUs for one release.
//
// Proves: Examples of model servers, each: without a host, with Argo, with Kruise.
func TestModelServers(t *testing.T) {
	t.Parallel()
	modelservers.InstallCRDs(t, cluster.Shared(t))
	prometheus := modelservers.StartPrometheus(t)
	quick := strings.NewReplacer("http://prometheus.monitoring:9090", prometheus.URL, "initialDelay: 2m", "initialDelay: 1s", "interval: 30s", "interval: 1s")
	for server, metric := range map[string]string{"vllm": "vllm:time_to_first_token", "sglang": "sglang[:_]time_to_first_token", "tensorrt-llm": "nv_inference_request_failure"} {
		t.Run(server, func(t *testing.T) {
			e := newEnv(t)
			e.Name = server
			e.Apply(quick.Replace(modelservers.Manifest(t, "../../examples", server, "argo", e.Namespace)))
			e.awaitPhase("Healthy")
			e.Eventually("the workload is under hold", func(ctx context.Context) error { return suite.Held(e.Workload(ctx)) })
			e.edit("v1") // another image than the example's: the first release
			e.MustRest("v1")
			e.awaitRest("v1")
			assert.True(t, prometheus.Asked(metric, e.Namespace), "no analysis asked for %s", metric)
			suite.DeleteWorkload(t, e.Cluster, e.Namespace, server)
		})
	}
}
