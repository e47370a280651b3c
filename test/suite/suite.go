// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package suite holds what the end-to-end suites share: their TestMain, clients, the workload vllm and edits by its user.
package suite

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	lwsclient "sigs.k8s.io/lws/client-go/clientset/versioned"
	lwsv1 "sigs.k8s.io/lws/client-go/clientset/versioned/typed/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/text"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/deploy"
)

// Main is [cluster.Main] with this many parallel tests, in a cluster with the policies of config/permissions. Tests mostly wait, so
// there can be more of them than processors.
func Main(m *testing.M, parallel int, opts ...cluster.Option) int {
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(parallel)); err != nil {
		panic(err)
	}
	return cluster.Main(m, append(opts, cluster.WithManifest(deploy.Permissions))...)
}

// Own starts a cluster for one test, which stops it at its end.
func Own(t testing.TB, opts ...cluster.Option) *cluster.Cluster {
	t.Helper()
	c, err := cluster.Start(t.Context(), append(opts, cluster.WithLog(t.Output()))...)
	require.NoError(t, err)
	t.Cleanup(c.Stop)
	return c
}

// Clients returns clients with cluster-admin permissions.
func Clients(c *cluster.Cluster) (kubernetes.Interface, lwsclient.Interface, dynamic.Interface) {
	cfg := c.RESTConfig()
	return kubernetes.NewForConfigOrDie(cfg), lwsclient.NewForConfigOrDie(cfg), dynamic.NewForConfigOrDie(cfg)
}

// Apply writes a manifest to a namespace.
func Apply(t testing.TB, c *cluster.Cluster, namespace, manifest string) {
	t.Helper()
	require.NoError(t, c.Apply(t.Context(), namespace, []byte(manifest)))
}

// Workload returns the manifest of a LeaderWorkerSet with groups of two pods, these pod annotations and the image
// example.com/vllm:v1.
func Workload(name string, groups int, annotations map[string]string) string {
	if annotations == nil {
		annotations = map[string]string{} // the API server refuses null
	}
	return fmt.Sprintf(`
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: %s}
spec:
  replicas: %d
  leaderWorkerTemplate:
    size: 2
    workerTemplate:
      metadata: {annotations: %s}
      spec:
        terminationGracePeriodSeconds: 1
        containers: [{name: server, image: "example.com/vllm:v1"}]
`, name, groups, text.JSON(annotations))
}

// Templates returns the pod templates of a LeaderWorkerSet: the worker template, and the leader template if it has one.
func Templates(w *lws.LeaderWorkerSet) []*corev1.PodTemplateSpec {
	all := []*corev1.PodTemplateSpec{&w.Spec.LeaderWorkerTemplate.WorkerTemplate}
	if leader := w.Spec.LeaderWorkerTemplate.LeaderTemplate; leader != nil {
		all = append(all, leader)
	}
	return all
}

// Annotated sets an annotation on the pods of every group, or removes it if the value is "".
func Annotated(key, value string) func(*lws.LeaderWorkerSet) {
	return func(w *lws.LeaderWorkerSet) {
		for _, t := range Templates(w) {
			metav1.SetMetaDataAnnotation(&t.ObjectMeta, key, value)
			if value == "" {
				delete(t.Annotations, key)
			}
		}
	}
}

// SetImage sets the image of a LeaderWorkerSet to example.com/vllm with this tag, as a GitOps tool would. The changes are part
// of the same write.
func SetImage(t testing.TB, sets lwsv1.LeaderWorkerSetInterface, name, tag string, changes ...func(*lws.LeaderWorkerSet)) {
	t.Helper()
	Edit(t, sets, name, func(w *lws.LeaderWorkerSet) {
		SetImages(w, "example.com/vllm:"+tag)
		for _, change := range changes {
			change(w)
		}
	})
}

// SetImages sets the image of the first container of leaders and workers.
func SetImages(w *lws.LeaderWorkerSet, image string) {
	for _, template := range Templates(w) {
		template.Spec.Containers[0].Image = image
	}
}

// Edit changes a LeaderWorkerSet with one write.
func Edit(t testing.TB, sets lwsv1.LeaderWorkerSetInterface, name string, change func(*lws.LeaderWorkerSet)) {
	t.Helper()
	await.Nil(t, "the LeaderWorkerSet is changed", func(ctx context.Context) error {
		w, err := sets.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(w)
		_, err = sets.Update(ctx, w, metav1.UpdateOptions{})
		return err
	})
}

// Get reads an object with its typed client.
func Get[T any](ctx context.Context, t testing.TB, objects interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (T, error)
}, name string,
) T {
	t.Helper()
	object, err := objects.Get(ctx, name, metav1.GetOptions{})
	require.NoError(t, err)
	return object
}

// List lists objects with their typed client.
func List[T any](t testing.TB, objects interface {
	List(ctx context.Context, o metav1.ListOptions) (T, error)
}, o metav1.ListOptions,
) T {
	t.Helper()
	list, err := objects.List(t.Context(), o)
	require.NoError(t, err)
	return list
}

// Create creates an object with its typed client.
func Create[T any](t testing.TB, objects interface {
	Create(ctx context.Context, object T, o metav1.CreateOptions) (T, error)
}, object T,
) T {
	t.Helper()
	created, err := objects.Create(t.Context(), object, metav1.CreateOptions{})
	require.NoError(t, err)
	return created
}

// Budget creates a PodDisruptionBudget of the user's.
func Budget(t testing.TB, client kubernetes.Interface, namespace, name string, maxUnavailable int32, pods metav1.LabelSelector) {
	t.Helper()
	Create(t, client.PolicyV1().PodDisruptionBudgets(namespace), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: ptr.To(intstr.FromInt32(maxUnavailable)), UnhealthyPodEvictionPolicy: ptr.To(policyv1.AlwaysAllow), Selector: &pods,
		},
	})
}

// GroupBudgets creates the two budgets of docs/plan.md, "leaders" and "workers", which count groups: one may be disrupted at a time.
func GroupBudgets(t testing.TB, client kubernetes.Interface, namespace string, labels map[string]string) {
	t.Helper()
	for name, leaders := range map[string]metav1.LabelSelectorOperator{"leaders": metav1.LabelSelectorOpIn, "workers": metav1.LabelSelectorOpNotIn} {
		Budget(t, client, namespace, name, 1, metav1.LabelSelector{
			MatchLabels:      labels,
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: lws.WorkerIndexLabelKey, Operator: leaders, Values: []string{"0"}}},
		})
	}
}

// DeleteWorkload deletes a LeaderWorkerSet, and waits until its namespace has no pods: they may have all GPUs.
func DeleteWorkload(t testing.TB, c *cluster.Cluster, namespace, name string) {
	t.Helper()
	kube, sets, _ := Clients(c)
	require.NoError(t, sets.LeaderworkersetV1().LeaderWorkerSets(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
	await.Nil(t, "the pods are deleted", func(ctx context.Context) error {
		pods, err := kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d pods are left", len(pods.Items))
		}
		return err
	})
}

// Held returns nil if a LeaderWorkerSet is under hold, and otherwise an error with its rolling update configuration.
func Held(w *lws.LeaderWorkerSet) error {
	rolling := w.Spec.RolloutStrategy.RollingUpdateConfiguration
	if rolling == nil || !record.SameRolling(*rolling, record.Hold()) {
		return fmt.Errorf("no hold: %s", text.JSON(rolling))
	}
	return nil
}

// Patch applies a JSON merge patch to an object, with its typed or dynamic client.
func Patch[T any](t testing.TB, objects interface {
	Patch(ctx context.Context, name string, kind types.PatchType, patch []byte, o metav1.PatchOptions, subresources ...string) (T, error)
}, name, raw string,
) {
	t.Helper()
	_, err := objects.Patch(t.Context(), name, types.MergePatchType, []byte(raw), metav1.PatchOptions{})
	require.NoError(t, err)
}

// Delete deletes an object with its typed client, and does not wait for its removal.
func Delete(t testing.TB, objects interface {
	Delete(ctx context.Context, name string, o metav1.DeleteOptions) error
}, name string,
) {
	t.Helper()
	require.NoError(t, objects.Delete(t.Context(), name, metav1.DeleteOptions{}))
}

// Gone returns nil for the error of a read of an object that does not exist, and an error otherwise.
func Gone(err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err == nil:
		return errors.New("it still exists")
	}
	return err
}

// GetObject is [Get] with a dynamic client.
func GetObject(ctx context.Context, t testing.TB, objects dynamic.ResourceInterface, name string) *unstructured.Unstructured {
	t.Helper()
	object, err := objects.Get(ctx, name, metav1.GetOptions{})
	require.NoError(t, err)
	return object
}

// CreateObject is [Create] with a dynamic client.
func CreateObject(t testing.TB, objects dynamic.ResourceInterface, object *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	created, err := objects.Create(t.Context(), object, metav1.CreateOptions{})
	require.NoError(t, err)
	return created
}

// DeleteObject is [Delete] with a dynamic client.
func DeleteObject(t testing.TB, objects dynamic.ResourceInterface, name string) {
	t.Helper()
	require.NoError(t, objects.Delete(t.Context(), name, metav1.DeleteOptions{}))
}

// AwaitEvents waits for events about an object of a namespace, by their types and reasons such as "Normal BatchReady".
func AwaitEvents(t testing.TB, kube kubernetes.Interface, namespace, kind, name string, want ...string) {
	t.Helper()
	await.Nil(t, fmt.Sprintf("events %q about %s %s", want, kind, name), func(ctx context.Context) error {
		list, err := kube.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var found []string
		for i := range list.Items {
			if e := &list.Items[i]; e.Regarding.Kind == kind && e.Regarding.Name == name {
				found = append(found, e.Type+" "+e.Reason)
			}
		}
		for _, reason := range want {
			if !slices.Contains(found, reason) {
				return fmt.Errorf("there are %q", found)
			}
		}
		return nil
	})
}
