// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-rollouts/lockstep/config"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/require"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// The API server accepts the pods of the shipped Deployments in Lockstep's namespace, which enforces the Pod Security level
// restricted, and mounts no other token than theirs.
//
// Proves: Security: requests are those of docs/security.md, each right is used; the pods are restricted.
func TestDeploymentsAreRestricted(t *testing.T) {
	t.Parallel()
	e := newEnvIn(t, cluster.Shared(t))
	driver.Kubeconfig(t, e.cluster) // applies config/base
	for _, read := range []func() ([]byte, error){config.Kruise, config.BatchRelease} {
		manifest, err := read()
		require.NoError(t, err)
		require.NoError(t, e.cluster.Apply(t.Context(), config.Namespace, manifest))
	}
	for _, name := range []string{"deployment", "kruise", "kruise/batchrelease"} {
		raw := files.Read(t, filepath.Join("..", "..", "config", name, "deployment.yaml"))
		var deployment appsv1.Deployment
		require.NoError(t, yaml.UnmarshalStrict(raw, &deployment))
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "restricted"}, Spec: deployment.Spec.Template.Spec}
		create := func() (*corev1.Pod, error) {
			return e.kube.CoreV1().Pods(config.Namespace).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		}
		created, err := create()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(created.Spec.Volumes) != len(pod.Spec.Volumes) {
			t.Errorf("%s: the API server added a volume to %d: %v", name, len(pod.Spec.Volumes), created.Spec.Volumes)
		}
		pod.Spec.SecurityContext.SeccompProfile = nil
		if _, err := create(); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "seccompProfile") {
			t.Errorf("%s without a seccomp profile: %v", name, err)
		}
	}
}
