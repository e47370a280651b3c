// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	lwsclient "sigs.k8s.io/lws/client-go/clientset/versioned"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/observer"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// nodeResources returns a node's capacity, enough for the samples of LWS.
func nodeResources() corev1.ResourceList {
	return corev1.ResourceList{
		"google.com/tpu":                resource.MustParse("8"),
		"rdma/ib":                       resource.MustParse("8"),
		corev1.ResourceCPU:              resource.MustParse("512"),
		corev1.ResourceMemory:           resource.MustParse("16Ti"),
		corev1.ResourceEphemeralStorage: resource.MustParse("16Ti"),
		corev1.ResourcePods:             resource.MustParse("1000"),
		"nvidia.com/gpu":                resource.MustParse("64"),
	}
}

// env is one test's namespace in a cluster, with its own driver and observer.
type env struct {
	t         *testing.T
	cluster   *cluster.Cluster
	namespace string
	kube      kubernetes.Interface
	lws       lwsclient.Interface
	dynamic   dynamic.Interface
	driver    *driver.Driver
	observer  *rules
	names     []string // workloads, for the dump
}

// newEnv creates a namespace in the shared cluster, with an observer and a driver.
func newEnv(t *testing.T) *env {
	t.Helper()
	e := newEnvIn(t, cluster.Shared(t))
	e.driver = driver.Start(t, driver.Kubeconfig(t, e.cluster), e.namespace)
	return e
}

// newEnvIn is newEnv in any cluster, without a driver.
func newEnvIn(t *testing.T, c *cluster.Cluster) *env {
	t.Helper()
	e := &env{t: t, cluster: c, namespace: c.Namespace(t)}
	e.kube, e.lws, e.dynamic = suite.Clients(c)
	e.observer = observe(e)
	t.Cleanup(func() {
		e.observer.finish()
		if t.Failed() {
			e.dump()
		}
	})
	return e
}

// in returns the same environment for a subtest.
func (e *env) in(t *testing.T) *env {
	sub := *e
	sub.t = t
	return &sub
}

// eventually waits until check returns nil.
func (e *env) eventually(what string, check func(context.Context) error) {
	e.t.Helper()
	await.Nil(e.t, what, check)
}

// events returns the events about a workload.
func (e *env) events(ctx context.Context, name string) ([]eventsv1.Event, error) {
	list, err := e.kube.EventsV1().Events(e.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var about []eventsv1.Event
	for _, event := range list.Items {
		if event.Regarding.Kind == "LeaderWorkerSet" && event.Regarding.Name == name {
			about = append(about, event)
		}
	}
	return about, nil
}

// dump logs the objects and contexts that explain a failure.
func (e *env) dump() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var b strings.Builder
	sets, err := e.lws.LeaderworkersetV1().LeaderWorkerSets(e.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		e.t.Logf("dump: %v", err)
		return
	}
	for i := range sets.Items {
		s := &sets.Items[i]
		fmt.Fprintf(&b, "LWS %s rv=%s gen=%d/%d replicas=%d ready=%d updated=%d deleting=%t finalizers=%v rolling=%s\n  annotations=%v\n",
			s.Name, s.ResourceVersion, s.Generation, s.Status.ObservedGeneration, replicasOf(s), s.Status.ReadyReplicas,
			s.Status.UpdatedReplicas, s.DeletionTimestamp != nil, s.Finalizers, asJSON(s.Spec.RolloutStrategy.RollingUpdateConfiguration), s.Annotations)
	}
	if pods, err := e.kube.CoreV1().Pods(e.namespace).List(ctx, metav1.ListOptions{}); err == nil {
		for i := range pods.Items {
			p := &pods.Items[i]
			fmt.Fprintf(&b, "pod %s %s ready=%t deleting=%t revision=%s node=%s\n", p.Name, p.Status.Phase, podReady(p),
				p.DeletionTimestamp != nil, revisionOf(p), p.Spec.NodeName)
		}
	}
	if list, err := e.kube.EventsV1().Events(e.namespace).List(ctx, metav1.ListOptions{}); err == nil {
		for i := range list.Items {
			if ev := &list.Items[i]; ev.Regarding.Kind == "LeaderWorkerSet" {
				fmt.Fprintf(&b, "event %s %s %s: %s\n", ev.Regarding.Name, ev.Type, ev.Reason, ev.Note)
			}
		}
	}
	if e.driver != nil && e.driver.Running() {
		for _, name := range e.names {
			w := &workload{env: e, driver: e.driver, name: name}
			if c, err := w.tryContext(ctx); err == nil {
				fmt.Fprintf(&b, "context of %s: %s\n", name, show(c))
			} else {
				fmt.Fprintf(&b, "context of %s: %v\n", name, err)
			}
		}
	}
	e.t.Logf("state at the end:\n%s", b.String())
}

// parallelTests is the number of parallel tests. A third of the time they wait, for backoffs, deadlines and slow groups.
const parallelTests = 3

func TestMain(m *testing.M) {
	code := suite.Main(m, parallelTests, cluster.WithAudit(), cluster.WithGatewayAPI(), cluster.WithNodes(16, nodeResources()))
	driver.Cleanup()
	os.Exit(code)
}

// rules checks the safety rules on the events of a namespace, which [observer.Observer] records: each state of each LeaderWorkerSet, pod,
// Service, Ingress and DisaggregatedSet.
type rules struct {
	*observer.Observer
	env *env

	mu     sync.Mutex
	waived map[rule]bool
}

// clusterEvent is one change: the object's state from this version on, or its deletion.
type clusterEvent struct {
	version uint64
	object  runtime.Object // as typed returns it
	deleted bool
}

// rule is one of the safety rules. A test that violates one itself can waive it.
type rule string

// observe starts recording. The namespace must be empty.
func observe(e *env) *rules {
	return &rules{
		Observer: observer.Start(e.t, e.dynamic, e.namespace,
			networkingv1.SchemeGroupVersion.WithResource("ingresses"), corev1.SchemeGroupVersion.WithResource("services")),
		env: e, waived: map[rule]bool{},
	}
}

// waive disables rules that the test itself violates. If LWS then rolls out what nothing asked for, the test needs Waive, too.
func (o *rules) waive(rules ...rule) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range rules {
		o.waived[r] = true
	}
}

// finish stops recording and checks the rules after every event. Violations fail the test.
func (o *rules) finish() {
	events, r := o.Stop(), newReplay(o.waived)
	for _, e := range events {
		object := typed(e.Object.GetKind())
		if object == nil {
			continue
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(e.Object.Object, object); err != nil {
			o.env.t.Errorf("decode %s %s: %v", e.Object.GetKind(), e.Object.GetName(), err)
			continue
		}
		r.step(clusterEvent{e.Version, object, e.Deleted})
	}
	if len(r.violations) > 0 {
		o.env.t.Logf("history:\n%s", r.history())
	}
	for _, v := range r.violations[:min(len(r.violations), 10)] {
		o.env.t.Errorf("rule violated: %s", v)
	}
}

// typed returns an empty object of a kind that the rules read, or nil.
func typed(kind string) runtime.Object {
	switch kind {
	case "LeaderWorkerSet":
		return &lws.LeaderWorkerSet{}
	case "Pod":
		return &corev1.Pod{}
	case "Ingress":
		return &networkingv1.Ingress{}
	case "Service":
		return &corev1.Service{}
	case "DisaggregatedSet":
		return &disaggregated.DisaggregatedSet{}
	default:
		return nil
	}
}
