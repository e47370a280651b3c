// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package examples

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/grouptags"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

const image = "example.com/vllm:"

func TestMain(m *testing.M) {
	code := cluster.Main(m, cluster.WithTraefik(), cluster.WithNodes(16, nil)) // with GPUs for two DisaggregatedSets
	driver.Cleanup()
	os.Exit(code)
}

// env is a namespace with the examples' workload.
type env struct {
	*suite.Env

	// The binary, a kubeconfig with the permissions of config/base, and an address to serve on.
	binary, kubeconfig, address string
}

// newEnv applies workload.yaml, and waits until its groups are ready.
func newEnv(t *testing.T) *env {
	t.Helper()
	c := cluster.Shared(t)
	e := &env{
		Env: suite.NewEnv(t, c, "vllm"), binary: binary(t), address: "unix://" + filepath.Join(t.TempDir(), "driver.sock"),
		kubeconfig: driver.Kubeconfig(t, c),
	}
	manifest := files.Read(t, source("workload.yaml"))
	e.Apply(string(manifest))
	e.AwaitReady()
	return e
}

// binary returns the path of the lockstep under test.
func binary(t *testing.T) string {
	t.Helper()
	path := driver.Path(t)
	return path
}

// edit changes the image of leaders and workers, as with kubectl edit, and annotates the new pods.
func (e *env) edit(tag string, annotations map[string]string) {
	e.T.Helper()
	e.Edit(tag, func(w *lws.LeaderWorkerSet) {
		for _, template := range suite.Templates(w) {
			template.Annotations = annotations
		}
	})
}

// pods returns the UIDs of the namespace's pods by name.
func (e *env) pods() map[string]string {
	e.T.Helper()
	list := suite.List(e.T, e.Kube.CoreV1().Pods(e.Namespace), metav1.ListOptions{})
	uids := make(map[string]string, len(list.Items))
	for _, pod := range list.Items {
		uids[pod.Name] = string(pod.UID)
	}
	return uids
}

// mustRest fails the test unless only the hold is left of a release, and all pods are the workload's, ready and at the
// image's tag.
func (e *env) mustRest(tag string) {
	e.T.Helper()
	all := suite.List(e.T, e.Sets(), metav1.ListOptions{})
	assert.Equal(e.T, 1, len(all.Items), "LeaderWorkerSets are left, want the user's only")
	w := e.Workload(e.T.Context())
	assert.NoError(e.T, suite.Held(w))
	// The canary's pods are garbage collected after the canary.
	tags := strings.Repeat(tag+" ", int(*w.Spec.Replicas))
	grouptags.Await(e.T, e.Kube, e.Namespace, "", int(*w.Spec.LeaderWorkerTemplate.Size), strings.TrimSpace(tags))
}
