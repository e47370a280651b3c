// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"

	"github.com/lockstep-rollouts/lockstep/test/audit"
)

// sample is a sample of the LWS project: 3 groups of a leader and 3 workers.
func sample(t *testing.T, c *Cluster) []byte {
	t.Helper()
	built, err := c.build(t.Context(), lwsModule)
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(built.manifests("config/samples"), "leaderworkerset_v1_leaderworkerset.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

const sampleName = "leaderworkerset-sample"

func getLWS(ctx context.Context, c *Cluster, namespace, name string) (*unstructured.Unstructured, error) {
	return c.applier.client.Resource(lwsResource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
}

func waitGroups(t *testing.T, c *Cluster, namespace, name string, want int64) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s has %d ready groups", name, want), func(ctx context.Context) error {
		lws, err := getLWS(ctx, c, namespace, name)
		if err != nil {
			return err
		}
		if got, _, _ := unstructured.NestedInt64(lws.Object, "status", "readyReplicas"); got != want {
			return fmt.Errorf("it has %d", got)
		}
		return nil
	})
}

func TestSampleBecomesReady(t *testing.T) {
	c := Shared(t)
	namespace := c.Namespace(t)
	if err := c.Apply(t.Context(), namespace, sample(t, c)); err != nil {
		t.Fatal(err)
	}
	waitGroups(t, c, namespace, sampleName, 3)
	pods, err := c.kube.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(pods.Items) != 12 {
		t.Errorf("%d pods, want 12", len(pods.Items))
	}
	for _, pod := range pods.Items {
		if pod.Labels["leaderworkerset.sigs.k8s.io/group-key"] == "" {
			t.Errorf("pod %s lacks labels of LWS's webhook: %v", pod.Name, pod.Labels)
		}
		if pod.Spec.NodeName == "" || !ready(&pod) {
			t.Errorf("pod %s on node %q: %s", pod.Name, pod.Spec.NodeName, describe(&pod))
		}
	}
}

// group returns a LeaderWorkerSet of one group of two pods, whose worker has annotations.
const group = `apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: group}
spec:
  replicas: 1
  leaderWorkerTemplate:
    size: 2
    leaderTemplate:
      spec: &pod {containers: [{name: server, image: "example.com/server:v1"}]}
    workerTemplate:
      metadata: {annotations: %s}
      spec: *pod
`

// A crashing worker makes LWS recreate its group, as with a container that restarts.
func TestCrashRecreatesGroup(t *testing.T) {
	c := Shared(t)
	namespace := c.Namespace(t)
	annotations := fmt.Sprintf("{%s: %s, %s: 300ms}", AnnotationBehavior, BehaviorCrash, AnnotationPeriod)
	if err := c.Apply(t.Context(), namespace, fmt.Appendf(nil, group, annotations)); err != nil {
		t.Fatal(err)
	}
	var first string
	eventually(t, "the leader is replaced", func(ctx context.Context) error {
		leader, err := c.kube.CoreV1().Pods(namespace).Get(ctx, "group-0", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if first == "" {
			first = string(leader.UID)
		}
		if string(leader.UID) == first {
			return errors.New("it was not replaced")
		}
		return nil
	})
}

// A restarted API server has the same port and data.
func TestAPIServerRestart(t *testing.T) {
	c := startSmall(t, func(o *options) { o.lws = true })
	namespace := c.Namespace(t)
	if err := c.Apply(t.Context(), namespace, fmt.Appendf(nil, group, "{}")); err != nil {
		t.Fatal(err)
	}
	waitGroups(t, c, namespace, "group", 1)
	if err := c.StopAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := getLWS(t.Context(), c, namespace, "group"); err == nil {
		t.Error("a stopped API server responds")
	}
	if err := c.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	pods := c.kube.CoreV1().Pods(namespace)
	old, err := pods.Get(t.Context(), "group-0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := pods.Delete(t.Context(), "group-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "group-0 is another pod, and ready", func(ctx context.Context) error {
		p, err := pods.Get(ctx, "group-0", metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("get it: %w", err)
		}
		ready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		if p.UID == old.UID || !ready {
			return errors.New("it is not")
		}
		return nil
	})
	waitGroups(t, c, namespace, "group", 1)
	if err := c.Err(); err != nil {
		t.Errorf("a component died meanwhile: %v", err)
	}
}

// Without its webhook LWS objects can't change. After a restart LWS reconciles changes.
func TestLWSRestart(t *testing.T) {
	c := startSmall(t)
	namespace := c.Namespace(t)
	manifest := fmt.Appendf(nil, group, "{}")
	if err := c.Apply(t.Context(), namespace, manifest); err == nil {
		t.Fatal("a LeaderWorkerSet was created without LWS")
	}
	if err := c.InstallLWS(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(t.Context(), namespace, manifest); err != nil {
		t.Fatal(err)
	}
	waitGroups(t, c, namespace, "group", 1)
	if err := c.StopComponent(t.Context(), LWS); err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(t.Context(), namespace, manifest); err == nil {
		t.Error("a LeaderWorkerSet was changed without its webhook")
	}
	if err := c.StartComponent(t.Context(), LWS); err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(t.Context(), namespace, manifest); err != nil {
		t.Error(err)
	}
}

// A paused component does nothing until it is resumed.
func TestPause(t *testing.T) {
	c := startSmall(t)
	if err := c.PauseComponent(KWOK); err != nil {
		t.Fatal(err)
	}
	pod := newPod(t, c, c.Namespace(t), "waits", nil)
	watchPod(t, c, pod, func(p *corev1.Pod) bool { pod = p; return p.Spec.NodeName != "" })
	if ready(pod) {
		t.Error("the pod became ready without KWOK")
	}
	if err := c.ResumeComponent(KWOK); err != nil {
		t.Fatal(err)
	}
	watchPod(t, c, pod, ready)
}

// A service account's client has the account's permissions, and its requests are in the audit log.
func TestServiceAccount(t *testing.T) {
	c := Shared(t)
	namespace := c.Namespace(t)
	grantPodReader(t, c, namespace)
	cfg, err := c.ServiceAccountConfig(t.Context(), namespace, "reader")
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the role takes effect", func(ctx context.Context) error {
		_, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		return err
	})
	if _, err := client.CoreV1().Secrets(namespace).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("listing secrets: %v, want Forbidden", err)
	}
	user := "system:serviceaccount:" + namespace + ":reader"
	eventually(t, "the audit log has the request", func(context.Context) error {
		requests, err := audit.ReadFile(c.AuditLog(), user)
		if err == nil && !slices.ContainsFunc(requests, func(r audit.Event) bool { return r.User.Username == user && r.String() == "list secrets" }) {
			err = errors.New("it has not")
		}
		return err
	})
}

func grantPodReader(t *testing.T, c *Cluster, namespace string) {
	t.Helper()
	meta := metav1.ObjectMeta{Name: "reader"}
	_, err1 := c.kube.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{})
	_, err2 := c.kube.RbacV1().Roles(namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}},
	}}, metav1.CreateOptions{})
	_, err3 := c.kube.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "reader", Namespace: namespace}},
	}, metav1.CreateOptions{})
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
}

// A kubeconfig that is written from a config is of the same cluster.
func TestWriteKubeconfig(t *testing.T) {
	c := Shared(t)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := WriteKubeconfig(c.RESTConfig(), path); err != nil {
		t.Fatal(err)
	}
	version, err := c.kube.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if version.GitVersion != "v1.36.3" || !strings.HasPrefix(version.Minor, "36") {
		t.Errorf("the API server says it is %s (minor %s)", version.GitVersion, version.Minor)
	}
}
