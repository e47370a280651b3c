// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package traffic

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	lwsclient "sigs.k8s.io/lws/client-go/clientset/versioned"

	"github.com/lockstep-rollouts/lockstep/test/await"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/load"
	"github.com/lockstep-rollouts/lockstep/test/podserver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// pods is the server of all pods, on one port.
var pods struct {
	once   sync.Once
	server *podserver.Server
	err    error
}

// env is a test's namespace, behind the gateway.
type env struct {
	t         *testing.T
	cluster   *cluster.Cluster
	namespace string
	kube      kubernetes.Interface
	pods      *podserver.Server
	// kind is the kind of the test's route: HTTPRoute, or GRPCRoute for calls in place of requests.
	kind string
}

func newEnv(t *testing.T) *env {
	t.Helper()
	c := cluster.Shared(t)
	pods.once.Do(func() { pods.server, pods.err = podserver.Start(context.Background(), c.RESTConfig()) })
	if pods.err != nil {
		t.Fatal(pods.err)
	}
	return &env{t: t, cluster: c, namespace: c.Namespace(t), kube: kubernetes.NewForConfigOrDie(c.RESTConfig()), pods: pods.server, kind: httpRoute}
}

func (e *env) apply(format string, args ...any) {
	e.t.Helper()
	suite.Apply(e.t, e.cluster, e.namespace, fmt.Sprintf(format, args...))
}

func (e *env) eventually(what string, check func(context.Context) error) {
	e.t.Helper()
	await.Nil(e.t, what, check)
}

// deploy creates a LeaderWorkerSet with groups of two and returns when all its pods are ready.
func (e *env) deploy(name string, groups int) {
	e.t.Helper()
	e.apply(`
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  leaderWorkerTemplate:
    size: 2
    workerTemplate: {spec: {containers: [{name: server, image: "example.com/%[1]s:v1", ports: [{name: http, containerPort: %[3]d}]}]}}
`, name, groups, podserver.Port)
	e.ready(name, 2*groups)
}

// ready returns when a number of pods of a LeaderWorkerSet are ready.
func (e *env) ready(name string, pods int) {
	e.t.Helper()
	e.eventually(name+" is ready", func(ctx context.Context) error {
		list, err := e.kube.CoreV1().Pods(e.namespace).List(ctx, metav1.ListOptions{LabelSelector: "leaderworkerset.sigs.k8s.io/name=" + name})
		if err != nil {
			return err
		}
		ready := 0
		for i := range list.Items {
			for _, condition := range list.Items[i].Status.Conditions {
				if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
					ready++
				}
			}
		}
		if ready != pods {
			return fmt.Errorf("%d of %d pods are ready", ready, pods)
		}
		return nil
	})
}

// leaders selects the leaders of a LeaderWorkerSet; allPods selects all its pods, as a wrong selector does.
const (
	leaders = `{leaderworkerset.sigs.k8s.io/name: %s, leaderworkerset.sigs.k8s.io/worker-index: "0"}`
	allPods = `{leaderworkerset.sigs.k8s.io/name: %s}`
)

// service creates a Service and returns when it has a number of endpoints.
func (e *env) service(name, selector string, endpoints int) {
	e.t.Helper()
	e.apply(`
apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec:
  selector: %[2]s
  ports: [{name: http, port: 80, targetPort: http}]
`, name, selector)
	e.eventually(fmt.Sprintf("Service %s has %d endpoints", name, endpoints), func(ctx context.Context) error {
		return e.hasEndpoints(ctx, name, endpoints)
	})
}

func (e *env) hasEndpoints(ctx context.Context, service string, want int) error {
	slices, err := e.kube.DiscoveryV1().EndpointSlices(e.namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	if err != nil {
		return err
	}
	got := 0
	for _, slice := range slices.Items {
		for _, endpoint := range slice.Endpoints {
			if endpoint.Conditions.Ready != nil && *endpoint.Conditions.Ready {
				got++
			}
		}
	}
	if got != want {
		return fmt.Errorf("it has %d", got)
	}
	return nil
}

// host is the Host header of this test's route.
func (e *env) host() string { return e.namespace + ".test" }

// route creates the test's route with rules, given as YAML.
func (e *env) route(rules string) {
	e.t.Helper()
	e.apply(`
apiVersion: gateway.networking.k8s.io/v1
kind: %s
metadata: {name: model}
spec:
  parentRefs: [{name: %s, namespace: %s}]
  hostnames: [%s]
  rules: %s
`, e.kind, cluster.GatewayName, cluster.GatewayNamespace, e.host(), rules)
}

// The kinds of routes.
const (
	httpRoute = "HTTPRoute"
	grpcRoute = "GRPCRoute"
)

// only is a rule with the stable Service only.
const only = "[{backendRefs: [{name: stable, port: 80}]}]"

// split is a rule with two weights.
func split(stable, canary int) string {
	return fmt.Sprintf("[{backendRefs: [{name: stable, port: 80, weight: %d}, {name: canary, port: 80, weight: %d}]}]", stable, canary)
}

// load starts requests to the test's host.
func (e *env) load(options load.Options) *load.Generator {
	e.t.Helper()
	options.URL, options.Host = "http://"+e.cluster.GatewayAddress()+"/v1/completions", e.host()
	options.GRPC = e.kind == grpcRoute
	g := load.Start(e.t.Context(), options)
	e.t.Cleanup(func() { g.End() })
	return g
}

// await fails the test if the current phase is not reached.
func (e *env) await(g *load.Generator, n int) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), await.Patience)
	defer cancel()
	if err := g.Await(ctx, n); err != nil {
		e.t.Error(err)
	}
}

// served waits until the gateway serves the route.
func (e *env) served() {
	e.t.Helper()
	e.eventually("the gateway serves "+e.host(), func(ctx context.Context) error {
		g := load.Start(ctx, load.Options{URL: "http://" + e.cluster.GatewayAddress() + "/", Host: e.host(), Requests: 1, GRPC: e.kind == grpcRoute})
		if err := g.Await(ctx, 1); err != nil {
			return err
		}
		report := g.End()
		if _, worker := report.Rows[0].Failures[string(podserver.Worker)]; worker {
			return nil
		}
		if problems := report.Problems(); len(problems) > 0 {
			return errors.New(problems[0])
		}
		return nil
	})
}

// settled waits until no request has failed for a second.
func (e *env) settled(g *load.Generator) {
	e.t.Helper()
	e.eventually("no request fails any more", func(context.Context) error {
		_, before := g.Totals()
		time.Sleep(time.Second)
		if _, failed := g.Totals(); failed > before {
			return fmt.Errorf("%d more have", failed-before)
		}
		return nil
	})
}

// behave changes how a pod behaves.
func (e *env) behave(pod, behavior string) {
	e.t.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, cluster.AnnotationBehavior, behavior)
	if _, err := e.kube.CoreV1().Pods(e.namespace).Patch(e.t.Context(), pod, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		e.t.Fatal(err)
	}
}

// deleteSet deletes a LeaderWorkerSet.
func (e *env) deleteSet(name string) {
	e.t.Helper()
	sets := lwsclient.NewForConfigOrDie(e.cluster.RESTConfig()).LeaderworkersetV1().LeaderWorkerSets(e.namespace)
	if err := sets.Delete(e.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		e.t.Fatal(err)
	}
}

// noPods returns nil when no pod of a LeaderWorkerSet is left.
func (e *env) noPods(ctx context.Context, name string) error {
	list, err := e.kube.CoreV1().Pods(e.namespace).List(ctx, metav1.ListOptions{LabelSelector: "leaderworkerset.sigs.k8s.io/name=" + name})
	if err != nil {
		return err
	}
	if len(list.Items) > 0 {
		return fmt.Errorf("%d pods are left", len(list.Items))
	}
	return nil
}
