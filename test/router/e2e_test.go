// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package router_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/apply"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/suite"
	"github.com/lockstep-rollouts/lockstep/traffic"
	"github.com/lockstep-rollouts/lockstep/traffic/router"
)

func TestMain(m *testing.M) { os.Exit(cluster.Main(m, cluster.WithoutLWS(), cluster.WithGatewayAPI())) }

// env is one test's namespace with a Service, routes and a Router.
type env struct {
	*testing.T
	cluster   *cluster.Cluster
	namespace string
	kube      kubernetes.Interface
	dynamic   dynamic.Interface
	router    *router.Router
	setup     traffic.Setup

	mu      sync.Mutex
	changes map[string]int
}

var (
	httpRoute = traffic.Key{Kind: traffic.KindHTTPRoute, Name: "llm"}
	grpcRoute = traffic.Key{Kind: traffic.KindGRPCRoute, Name: "llm"}
)

// newEnv starts a Router with the administrator's permissions.
func newEnv(t *testing.T) *env {
	t.Helper()
	e := &env{T: t, cluster: cluster.Shared(t), changes: map[string]int{}}
	e.namespace = e.cluster.Namespace(t)
	e.kube = kubernetes.NewForConfigOrDie(e.cluster.RESTConfig())
	e.dynamic = dynamic.NewForConfigOrDie(e.cluster.RESTConfig())
	e.apply("another-tool", serviceManifest)
	e.setup = e.newSetup()
	e.start(e.cluster.RESTConfig())
	return e
}

func (e *env) start(config *rest.Config) {
	e.Helper()
	r := router.New(router.Config{
		Core: kubernetes.NewForConfigOrDie(config), Dynamic: dynamic.NewForConfigOrDie(config), Namespace: e.namespace,
		Log: slog.New(slog.DiscardHandler), Changed: func(_, kind, name string) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.changes[kind+"/"+name]++
		},
	})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { r.Run(ctx); close(done) }()
	e.Cleanup(func() {
		stop()
		select {
		case <-done:
		case <-time.After(await.Patience):
			e.Error("Run does not return")
		}
	})
	e.router = r
}

// newSetup returns a Setup whose owner exists, so that garbage collection is real.
func (e *env) newSetup() traffic.Setup {
	e.Helper()
	owner := suite.Create(e.T, e.kube.CoreV1().ConfigMaps(e.namespace), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}})
	w := &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{Name: "vllm", Namespace: e.namespace, UID: "stable"}}
	w.Spec.LeaderWorkerTemplate.WorkerTemplate.Labels = map[string]string{"app": "vllm"}
	s := traffic.NewSetup(w, "vllm-abc123", traffic.Policy{
		StableService: "vllm", CanaryService: "vllm-canary", Routes: []traffic.Key{httpRoute, grpcRoute},
	}, nil)
	s.Owner = *metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	return s
}

const serviceManifest = `apiVersion: v1
kind: Service
metadata: {name: vllm, annotations: {owner: ml}}
spec:
  selector: {app: vllm, leaderworkerset.sigs.k8s.io/worker-index: "0"}
  ports: [{name: http, port: 80, targetPort: 8080}]
`

const httpManifest = `apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: llm}
spec:
  parentRefs: [{name: public}]
  rules:
  - matches: [{path: {value: /old}}]
    filters: [{type: RequestRedirect, requestRedirect: {scheme: https}}]
  - matches: [{path: {value: /}, headers: [{name: x-tenant, value: a}]}]
    timeouts: {request: 300s}
    backendRefs:
    - {name: other, port: 80, weight: 1}
    - {name: vllm, port: 80, weight: 3}
  - backendRefs: [{name: vllm, port: 80}]
`

const grpcManifest = `apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: llm}
spec:
  parentRefs: [{name: public}]
  rules:
  - backendRefs: [{name: vllm, port: 80}]
`

// apply is a user's server-side apply, as by Argo CD or kubectl.
func (e *env) apply(manager, manifest string) {
	e.Helper()
	require.NoError(e, e.applyError(manager, manifest, true))
}

func (e *env) applyError(manager, manifest string, force bool) error {
	e.Helper()
	o := decode(e.T, manifest)
	_, err := e.client(o.GetKind()).Apply(e.Context(), o.GetName(), o, metav1.ApplyOptions{FieldManager: manager, Force: force})
	return err
}

func (e *env) client(kind string) dynamic.ResourceInterface {
	e.Helper()
	resource, known := resources[kind]
	require.True(e, known, "no kind %s", kind)
	return e.dynamic.Resource(resource).Namespace(e.namespace)
}

// resources are those of the kinds that the router reads.
var resources = map[string]schema.GroupVersionResource{
	traffic.KindService:   corev1.SchemeGroupVersion.WithResource("services"),
	traffic.KindHTTPRoute: {Group: traffic.GatewayGroup, Version: traffic.GatewayVersion, Resource: "httproutes"},
	traffic.KindGRPCRoute: {Group: traffic.GatewayGroup, Version: traffic.GatewayVersion, Resource: "grpcroutes"},
}

func (e *env) get(key traffic.Key) *unstructured.Unstructured {
	e.Helper()
	return suite.GetObject(e.Context(), e.T, e.client(key.Kind), key.Name)
}

// pod creates a pod, which KWOK makes ready. LWS does not run here.
func (e *env) pod(name, workload, index string) {
	e.Helper()
	labels := map[string]string{"app": "vllm", lws.SetNameLabelKey: workload, lws.WorkerIndexLabelKey: index}
	suite.Create(e.T, e.kube.CoreV1().Pods(e.namespace), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "server", Image: "example.com/server:v1"}}},
	})
}

// gateway accepts the routes, as a gateway controller does.
func (e *env) gateway() {
	e.Helper()
	for _, key := range e.setup.Policy.Routes {
		e.accept(e.get(key))
	}
}

func (e *env) accept(o *unstructured.Unstructured) {
	e.Helper()
	condition := func(kind string) any {
		return map[string]any{
			"type": kind, "status": "True", "reason": kind, "message": "", "observedGeneration": o.GetGeneration(),
			"lastTransitionTime": time.Now().UTC().Format(time.RFC3339),
		}
	}
	o.Object["status"] = map[string]any{"parents": []any{map[string]any{
		"parentRef":      map[string]any{"name": "public"},
		"controllerName": "example.com/gateway", "conditions": []any{condition("Accepted"), condition("ResolvedRefs")},
	}}}
	_, err := e.client(o.GetKind()).UpdateStatus(e.Context(), o, metav1.UpdateOptions{FieldManager: "gateway"})
	require.NoError(e, err)
}

// next returns the next write towards what is desired, nil if none is due.
func (e *env) next(d traffic.Desired) *traffic.Write {
	e.Helper()
	o := e.router.Snapshot(e.setup)
	require.Nil(e, o.Unread)
	next, err := traffic.Next(e.setup, d, o.World)
	require.NoError(e, err)
	return next
}

// applyAll applies until no write is due.
func (e *env) applyAll(d traffic.Desired) (writes []string) {
	e.Helper()
	for range 16 {
		next := e.next(d)
		if next == nil {
			return writes
		}
		_, err := apply.SendTraffic(e.Context(), e.client(next.Key.Kind), next)
		require.NoError(e, err, next)
		await.True(e.T, next.String()+" is seen", func() bool {
			now := e.next(d)
			return now == nil || now.String() != next.String()
		})
		what, _, _ := strings.Cut(next.String(), ":")
		writes = append(writes, what)
	}
	e.Fatalf("no end: %v", writes)
	return nil
}

// view waits until the View has a reason.
func (e *env) view(d traffic.Desired, reason string) traffic.View {
	e.Helper()
	var v traffic.View
	await.Nil(e.T, fmt.Sprintf("reason %q", reason), func(context.Context) error {
		if v = e.router.Snapshot(e.setup).Look(d); v.Reason != reason {
			return fmt.Errorf("view is %+v", v)
		}
		return nil
	})
	return v
}

// applyRoutes applies the user's manifests once the API is served.
func (e *env) applyRoutes(manager string) {
	e.Helper()
	for _, manifest := range []string{httpManifest, grpcManifest} {
		await.Nil(e.T, "the routes are accepted", func(context.Context) error {
			return e.applyError(manager, manifest, true)
		})
	}
}
