// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package examples

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	lwsclient "sigs.k8s.io/lws/client-go/clientset/versioned"
	lwsv1 "sigs.k8s.io/lws/client-go/clientset/versioned/typed/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/grouptags"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

const (
	workload = "vllm"
	image    = "example.com/vllm:"
)

func TestMain(m *testing.M) {
	code := cluster.Main(m, cluster.WithTraefik(), cluster.WithNodes(16, nil)) // with GPUs for two DisaggregatedSets
	driver.Cleanup()
	os.Exit(code)
}

// env is a namespace with the examples' workload.
type env struct {
	t         *testing.T
	namespace string
	kube      kubernetes.Interface
	lws       lwsclient.Interface

	// The binary, a kubeconfig with the permissions of config/base, and an address to serve on.
	binary, kubeconfig, address string
}

// newEnv applies workload.yaml, and waits until its groups are ready.
func newEnv(t *testing.T) *env {
	t.Helper()
	c := cluster.Shared(t)
	dir := t.TempDir()
	e := &env{
		t: t, namespace: c.Namespace(t), binary: binary(t), address: "unix://" + filepath.Join(dir, "driver.sock"),
		kubeconfig: driver.Kubeconfig(t, c),
	}
	e.kube, e.lws, _ = suite.Clients(c)
	manifest, err := os.ReadFile(source("workload.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	suite.Apply(t, c, e.namespace, string(manifest))
	e.eventually("all groups are ready", func(ctx context.Context) error {
		if w := e.get(ctx); w.Status.ReadyReplicas != *w.Spec.Replicas {
			return fmt.Errorf("%d of %d are", w.Status.ReadyReplicas, *w.Spec.Replicas)
		}
		return nil
	})
	return e
}

// binary returns the path of the lockstep under test.
func binary(t *testing.T) string {
	t.Helper()
	path, err := driver.Binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// eventually waits until check returns nil, and fails with its last error.
func (e *env) eventually(what string, check func(context.Context) error) {
	e.t.Helper()
	await.Nil(e.t, what, check)
}

func (e *env) sets() lwsv1.LeaderWorkerSetInterface {
	return e.lws.LeaderworkersetV1().LeaderWorkerSets(e.namespace)
}

func (e *env) get(ctx context.Context) *lws.LeaderWorkerSet {
	e.t.Helper()
	return suite.Get(ctx, e.t, e.sets(), workload)
}

// edit changes the image of leaders and workers, as with kubectl edit, and annotates the new pods.
func (e *env) edit(tag string, annotations map[string]string) {
	e.t.Helper()
	suite.SetImage(e.t, e.sets(), workload, tag, func(w *lws.LeaderWorkerSet) {
		for _, template := range suite.Templates(w) {
			template.Annotations = annotations
		}
	})
}

// pods returns the UIDs of the namespace's pods by name.
func (e *env) pods() map[string]string {
	e.t.Helper()
	list, err := e.kube.CoreV1().Pods(e.namespace).List(e.t.Context(), metav1.ListOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
	uids := make(map[string]string, len(list.Items))
	for _, pod := range list.Items {
		uids[pod.Name] = string(pod.UID)
	}
	return uids
}

// mustRest fails the test unless only the hold is left of a release, and all pods are the workload's, ready and at the
// image's tag.
func (e *env) mustRest(tag string) {
	e.t.Helper()
	all, err := e.sets().List(e.t.Context(), metav1.ListOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
	if len(all.Items) != 1 {
		e.t.Errorf("%d LeaderWorkerSets are left, want the user's only", len(all.Items))
	}
	w := e.get(e.t.Context())
	if err := suite.Held(w); err != nil {
		e.t.Error(err)
	}
	// The canary's pods are garbage collected after the canary.
	tags := strings.Repeat(tag+" ", int(*w.Spec.Replicas))
	grouptags.Await(e.t, e.kube, e.namespace, "", int(*w.Spec.LeaderWorkerTemplate.Size), strings.TrimSpace(tags))
}
