// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package serving has a workload that receives requests through the gateway, and its release, for the suites that send requests.
package serving

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/load"
	"github.com/lockstep-rollouts/lockstep/test/netns"
	"github.com/lockstep-rollouts/lockstep/test/podanswer"
	"github.com/lockstep-rollouts/lockstep/test/podserver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// pods is the server of all pods, on one port.
var pods struct {
	once   sync.Once
	server *podserver.Server
	err    error
}

// Env is a test's namespace, behind the gateway of the shared cluster.
type Env struct {
	*suite.Env

	// Pods serves for pods without containers. Nil on nodes that run containers.
	Pods *podserver.Server
	// Gateway is the address of the gateway: Traefik's, unless a test has its own.
	Gateway string
	// Kind is the kind of the test's route: HTTPRoute, or GRPCRoute for calls in place of requests.
	Kind string
}

// NewEnv creates a namespace for a test.
func NewEnv(t *testing.T) *Env {
	t.Helper()
	c := cluster.Shared(t)
	e := &Env{Env: suite.NewEnv(t, c, "model"), Gateway: c.GatewayAddress(), Kind: HTTPRoute}
	if netns.OnNode() {
		return e
	}
	pods.once.Do(func() { pods.server, pods.err = podserver.Start(context.Background(), c.RESTConfig()) })
	require.NoError(t, pods.err)
	e.Pods = pods.server
	return e
}

// Apply writes a manifest, with [fmt.Sprintf]'s arguments, to the namespace.
func (e *Env) Apply(format string, args ...any) {
	e.T.Helper()
	e.Env.Apply(fmt.Sprintf(format, args...))
}

// Deploy creates a LeaderWorkerSet with groups of two and returns when all its pods are ready.
func (e *Env) Deploy(name string, groups int) {
	e.T.Helper()
	e.Apply(`
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  leaderWorkerTemplate:
    size: 2
    workerTemplate: {spec: {containers: [{name: server, image: "example.com/%[1]s:v1", ports: [{name: http, containerPort: %[3]d}]}]}}
`, name, groups, podserver.Port)
	e.Ready(name, 2*groups)
}

// Ready returns when a number of pods of a LeaderWorkerSet are ready.
func (e *Env) Ready(name string, pods int) {
	e.T.Helper()
	e.Eventually(name+" is ready", func(ctx context.Context) error {
		list, err := e.Kube.CoreV1().Pods(e.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "leaderworkerset.sigs.k8s.io/name=" + name})
		if err != nil {
			return err
		}
		ready := 0
		for i := range list.Items {
			if podserver.Ready(&list.Items[i]) {
				ready++
			}
		}
		if ready != pods {
			return fmt.Errorf("%d of %d pods are ready", ready, pods)
		}
		return nil
	})
}

// leaders selects the leaders of a LeaderWorkerSet; AllPods selects all its pods, as a wrong selector does.
const (
	leaders = `{leaderworkerset.sigs.k8s.io/name: %s, leaderworkerset.sigs.k8s.io/worker-index: "0"}`
	AllPods = `{leaderworkerset.sigs.k8s.io/name: %s}`
)

// Service creates a Service and returns when it has a number of endpoints.
func (e *Env) Service(name, selector string, endpoints int) {
	e.T.Helper()
	e.Apply(`
apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec:
  selector: %[2]s
  ports: [{name: http, port: 80, targetPort: http}]
`, name, selector)
	e.Eventually(fmt.Sprintf("Service %s has %d endpoints", name, endpoints), func(ctx context.Context) error {
		return e.HasEndpoints(ctx, name, endpoints)
	})
}

// HasEndpoints returns nil if a Service has a number of ready endpoints.
func (e *Env) HasEndpoints(ctx context.Context, service string, want int) error {
	slices, err := e.Kube.DiscoveryV1().EndpointSlices(e.Namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
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

// Host is the Host header of this test's route.
func (e *Env) Host() string { return e.Namespace + ".test" }

// Route creates the test's route with rules, given as YAML.
func (e *Env) Route(rules string) {
	e.T.Helper()
	e.Apply(`
apiVersion: gateway.networking.k8s.io/v1
kind: %s
metadata: {name: model}
spec:
  parentRefs: [{name: %s, namespace: %s}]
  hostnames: [%s]
  rules: %s
`, e.Kind, cluster.GatewayName, cluster.GatewayNamespace, e.Host(), rules)
}

// The kinds of routes.
const (
	HTTPRoute = "HTTPRoute"
	GRPCRoute = "GRPCRoute"
)

// Only is a rule with the stable Service only.
const Only = "[{backendRefs: [{name: stable, port: 80}]}]"

// Split is a rule with two weights.
func Split(stable, canary int) string {
	return fmt.Sprintf("[{backendRefs: [{name: stable, port: 80, weight: %d}, {name: canary, port: 80, weight: %d}]}]", stable, canary)
}

// Load starts requests to the test's host.
func (e *Env) Load(options load.Options) *load.Generator {
	e.T.Helper()
	g := load.Start(e.T.Context(), e.target(options))
	e.T.Cleanup(func() { g.End() })
	return g
}

// target has the requests sent to the test's host.
func (e *Env) target(options load.Options) load.Options {
	options.URL, options.Host = "http://"+e.Gateway+"/v1/completions", e.Host()
	options.GRPC = e.Kind == GRPCRoute
	return options
}

// Await fails the test if the current phase is not reached.
func (e *Env) Await(g *load.Generator, n int) {
	e.T.Helper()
	ctx, cancel := context.WithTimeout(e.T.Context(), await.Patience)
	defer cancel()
	assert.NoError(e.T, g.Await(ctx, n))
}

// Served waits until the gateway serves the route.
func (e *Env) Served() {
	e.T.Helper()
	e.Eventually("the gateway serves "+e.Host(), func(ctx context.Context) error {
		options := load.Options{Requests: 1}
		if e.Pods == nil {
			options.Stream = time.Millisecond
		}
		g := load.Start(ctx, e.target(options))
		if err := g.Await(ctx, 1); err != nil {
			return err
		}
		report := g.End()
		if _, worker := report.Rows[0].Failures[string(podanswer.Worker)]; worker {
			return nil
		}
		if problems := report.Problems(); len(problems) > 0 {
			return errors.New(problems[0])
		}
		return nil
	})
}

// Settled waits until no request has failed for a second.
func (e *Env) Settled(g *load.Generator) {
	e.T.Helper()
	e.Eventually("no request fails any more", func(context.Context) error {
		_, before := g.Totals()
		time.Sleep(time.Second)
		if _, failed := g.Totals(); failed > before {
			return fmt.Errorf("%d more have", failed-before)
		}
		return nil
	})
}

// Behave changes how a pod behaves.
func (e *Env) Behave(pod, behavior string) {
	e.T.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, cluster.AnnotationBehavior, behavior)
	_, err := e.Kube.CoreV1().Pods(e.Namespace).Patch(e.T.Context(), pod, types.MergePatchType, patch, metav1.PatchOptions{})
	require.NoError(e.T, err)
}

// NoPods returns nil when no pod of a LeaderWorkerSet is left.
func (e *Env) NoPods(ctx context.Context, name string) error {
	list, err := e.Kube.CoreV1().Pods(e.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "leaderworkerset.sigs.k8s.io/name=" + name})
	if err != nil {
		return err
	}
	if len(list.Items) > 0 {
		return fmt.Errorf("%d pods are left", len(list.Items))
	}
	return nil
}

// LeadersOf selects the leaders of a LeaderWorkerSet.
func LeadersOf(name string) string { return strings.ReplaceAll(leaders, "%s", name) }

// Passes ends the load, prints its table and fails the test for every problem.
func (e *Env) Passes(g *load.Generator) load.Report {
	e.T.Helper()
	report := g.End()
	report.Write(e.T.Output())
	for _, problem := range report.Problems() {
		e.T.Errorf("rule broken: %s", problem)
	}
	return report
}

// Fails ends the load, prints its table and fails the test if the checker does not report the fault.
func (e *Env) Fails(g *load.Generator, want string) load.Report {
	e.T.Helper()
	report := g.End()
	report.Write(e.T.Output())
	all := strings.Join(report.Problems(), "\n")
	assert.Contains(e.T, all, want, "the problems do not name %q:\n%s", want, all)
	return report
}

// ReadyGroups returns a function that counts the complete groups of the namespace whose pods are all ready and not terminating. It
// reads a cache of the pods, which lags by milliseconds.
func (e *Env) ReadyGroups() func() int {
	e.T.Helper()
	factory := informers.NewSharedInformerFactoryWithOptions(e.Kube, 0, informers.WithNamespace(e.Namespace))
	pods := factory.Core().V1().Pods().Informer()
	factory.StartWithContext(e.T.Context())
	require.True(e.T, cache.WaitForCacheSync(e.T.Context().Done(), pods.HasSynced), "the pods can't be watched")
	return func() int { return readyGroups(pods.GetStore().List()) }
}

func readyGroups(pods []any) int {
	type group struct{ name, index string }
	missing := map[group]int{}
	for _, object := range pods {
		pod, _ := object.(*corev1.Pod)
		size, err := strconv.Atoi(pod.Annotations[lws.SizeAnnotationKey])
		if err != nil || pod.DeletionTimestamp != nil || !podserver.Ready(pod) {
			continue
		}
		of := group{pod.Labels[lws.SetNameLabelKey], pod.Labels[lws.GroupIndexLabelKey]}
		if _, known := missing[of]; !known {
			missing[of] = size
		}
		missing[of]--
	}
	complete := 0
	for _, n := range missing {
		if n == 0 {
			complete++
		}
	}
	return complete
}
