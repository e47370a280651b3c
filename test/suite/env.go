// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	lwsclient "sigs.k8s.io/lws/client-go/clientset/versioned"
	lwsv1 "sigs.k8s.io/lws/client-go/clientset/versioned/typed/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/text"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/grouptags"
	"github.com/lockstep-rollouts/lockstep/test/observer"
)

// Env is the namespace of one test, with clients that may do everything. The environments of the suites embed it.
type Env struct {
	T         *testing.T
	Cluster   *cluster.Cluster
	Namespace string
	// Name is that of the LeaderWorkerSet that the test releases.
	Name    string
	Kube    kubernetes.Interface
	LWS     lwsclient.Interface
	Dynamic dynamic.Interface
}

// NewEnv creates a namespace, which the observer judges until the test ends.
func NewEnv(t *testing.T, c *cluster.Cluster, name string) *Env {
	t.Helper()
	e := &Env{T: t, Cluster: c, Namespace: c.Namespace(t), Name: name}
	e.Kube, e.LWS, e.Dynamic = Clients(c)
	observer.Start(t, e.Dynamic, e.Namespace)
	return e
}

// Eventually waits until check returns nil.
func (e *Env) Eventually(what string, check func(context.Context) error) {
	e.T.Helper()
	await.Nil(e.T, what, check)
}

// Apply writes a manifest to the namespace.
func (e *Env) Apply(manifest string) {
	e.T.Helper()
	Apply(e.T, e.Cluster, e.Namespace, manifest)
}

// Sets returns the client of the namespace's LeaderWorkerSets.
func (e *Env) Sets() lwsv1.LeaderWorkerSetInterface {
	return e.LWS.LeaderworkersetV1().LeaderWorkerSets(e.Namespace)
}

// Objects returns the client of the namespace's objects of a kind.
func (e *Env) Objects(kind schema.GroupVersionResource) dynamic.ResourceInterface {
	return e.Dynamic.Resource(kind).Namespace(e.Namespace)
}

// Deploy creates the LeaderWorkerSet with [Workload], and waits until its groups are ready.
func (e *Env) Deploy(groups int, annotations map[string]string) {
	e.T.Helper()
	e.Apply(Workload(e.Name, groups, annotations))
	e.AwaitReady()
}

// AwaitReady waits until the LeaderWorkerSet has as many ready groups as in its spec.
func (e *Env) AwaitReady() {
	e.T.Helper()
	e.Eventually("all groups are ready", func(ctx context.Context) error {
		if w := e.Workload(ctx); w.Status.ReadyReplicas != *w.Spec.Replicas {
			return fmt.Errorf("%d of %d are", w.Status.ReadyReplicas, *w.Spec.Replicas)
		}
		return nil
	})
}

// Workload reads the LeaderWorkerSet.
func (e *Env) Workload(ctx context.Context) *lws.LeaderWorkerSet {
	e.T.Helper()
	return Get(ctx, e.T, e.Sets(), e.Name)
}

// Edit is [SetImage] of the LeaderWorkerSet.
func (e *Env) Edit(tag string, changes ...func(*lws.LeaderWorkerSet)) {
	e.T.Helper()
	SetImage(e.T, e.Sets(), e.Name, tag, changes...)
}

// PatchWorkload applies a JSON merge patch to the LeaderWorkerSet.
func (e *Env) PatchWorkload(raw string) {
	e.T.Helper()
	Patch(e.T, e.Objects(lws.SchemeGroupVersion.WithResource("leaderworkersets")), e.Name, raw)
}

// Scale gives the LeaderWorkerSet a number of groups, and waits until all are at the tag.
func (e *Env) Scale(n int, tag string) {
	e.T.Helper()
	e.PatchWorkload(fmt.Sprintf(`{"spec":{"replicas":%d}}`, n))
	e.MustHave(strings.TrimSpace(strings.Repeat(tag+" ", n)))
}

// Pods returns the pods of the LeaderWorkerSet Name, or of all if it is "".
func (e *Env) Pods(ctx context.Context, name string) ([]corev1.Pod, error) {
	list, err := e.Kube.CoreV1().Pods(e.Namespace).List(ctx, metav1.ListOptions{LabelSelector: podsOf(name)})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

func podsOf(name string) string {
	if name == "" {
		return lws.SetNameLabelKey
	}
	return lws.SetNameLabelKey + "=" + name
}

// Identities returns the UIDs of the LeaderWorkerSet's own pods.
func (e *Env) Identities() map[string]types.UID {
	e.T.Helper()
	pods, err := e.Pods(e.T.Context(), e.Name)
	require.NoError(e.T, err)
	found := map[string]types.UID{}
	for i := range pods {
		found[pods[i].Name] = pods[i].UID
	}
	return found
}

// MustKeep fails the test if the leader of one of these groups was replaced.
func (e *Env) MustKeep(before map[string]types.UID, indices ...int) {
	e.T.Helper()
	after := e.Identities()
	for _, i := range indices {
		leader := fmt.Sprintf("%s-%d", e.Name, i)
		assert.Equal(e.T, after[leader], before[leader], "%s was restarted", leader)
	}
}

// MustHave waits until the LeaderWorkerSet's groups are at these tags, such as "v1 v1 v1 v2".
func (e *Env) MustHave(want string) {
	e.T.Helper()
	e.MustHaveIn(e.Name, want)
}

// MustHaveIn is MustHave for another LeaderWorkerSet.
func (e *Env) MustHaveIn(name, want string) {
	e.T.Helper()
	grouptags.Await(e.T, e.Kube, e.Namespace, podsOf(name), 2, want)
}

// MustRest waits until only the hold is left of a release: one LeaderWorkerSet, with all groups ready and at the tag.
func (e *Env) MustRest(tag string) {
	e.T.Helper()
	e.Eventually("only the workload's groups, at "+tag+", under hold", func(ctx context.Context) error {
		if err := Held(e.Workload(ctx)); err != nil {
			return err
		}
		return e.Only(ctx, tag)
	})
}

// Only returns an error if anything but the LeaderWorkerSet's groups at a tag exists.
func (e *Env) Only(ctx context.Context, tag string) error {
	sets, err := e.Sets().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(sets.Items) != 1 {
		return fmt.Errorf("%d LeaderWorkerSets", len(sets.Items))
	}
	spec := sets.Items[0].Spec
	tags, err := grouptags.Of(ctx, e.Kube, e.Namespace, podsOf(""), int(*spec.LeaderWorkerTemplate.Size))
	if want := strings.TrimSpace(strings.Repeat(tag+" ", int(*spec.Replicas))); err == nil && tags != want {
		err = fmt.Errorf("groups are at %q", tags)
	}
	return err
}

// Dump logs all objects of these kinds in the namespace, and the LeaderWorkerSets with their StatefulSets and pods, without managedFields.
func (e *Env) Dump(kinds ...schema.GroupVersionResource) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	kinds = append(kinds, lws.SchemeGroupVersion.WithResource("leaderworkersets"),
		appsv1.SchemeGroupVersion.WithResource("statefulsets"), corev1.SchemeGroupVersion.WithResource("pods"))
	for _, kind := range kinds {
		list, err := e.Objects(kind).List(ctx, metav1.ListOptions{})
		if err != nil {
			e.T.Logf("%s: %v", kind.Resource, err)
			continue
		}
		for _, o := range list.Items {
			o.SetManagedFields(nil)
			e.T.Logf("%s: %s", kind.Resource, text.JSON(o.Object))
		}
	}
}

// podMetrics is a CRD in place of the metrics API.
const podMetrics = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: pods.metrics.k8s.io
  annotations: {api-approved.kubernetes.io: "unapproved, for tests only"}
spec:
  group: metrics.k8s.io
  scope: Namespaced
  names: {plural: pods, singular: podmetrics, kind: PodMetrics, listKind: PodMetricsList}
  versions:
  - name: v1beta1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// ServePodMetrics serves the metrics API, for all tests of the cluster. The HorizontalPodAutoscaler's controller reads PodMetrics that
// tests apply as if a metrics server served them.
func ServePodMetrics(t testing.TB, c *cluster.Cluster) {
	t.Helper()
	require.NoError(t, c.Apply(t.Context(), "", []byte(podMetrics)))
	_, _, client := Clients(c)
	await.Nil(t, "the metrics API is served", func(ctx context.Context) error {
		_, err := client.Resource(podMetricsResource).List(ctx, metav1.ListOptions{Limit: 1})
		return err
	})
}

// podMetricsResource is the resource of [SetPodMetrics].
var podMetricsResource = schema.GroupVersionResource{Group: "metrics.k8s.io", Version: "v1beta1", Resource: "pods"}

// SetPodMetrics publishes a metric of leaders of a LeaderWorkerSet, by the pods' names, as so many Mi of memory.
func SetPodMetrics(ctx context.Context, c *cluster.Cluster, namespace, set string, leaders map[string]int) error {
	var b strings.Builder
	for pod, value := range leaders {
		fmt.Fprintf(&b, `---
apiVersion: metrics.k8s.io/v1beta1
kind: PodMetrics
metadata:
  name: %s
  labels: {leaderworkerset.sigs.k8s.io/name: %s, leaderworkerset.sigs.k8s.io/worker-index: "0"}
timestamp: %q
window: 3s
containers: [{name: server, usage: {memory: %dMi}}]
`, pod, set, time.Now().UTC().Format(time.RFC3339), value)
	}
	return c.Apply(ctx, namespace, []byte(b.String()))
}
