// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package install

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// No test is parallel: all install the same cluster-scoped objects.
func TestMain(m *testing.M) {
	// Argo's Deployment requests ephemeral storage.
	node := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("64Gi"),
		corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceEphemeralStorage: resource.MustParse("64Gi"),
	}
	os.Exit(cluster.Main(m, cluster.WithInstallers(), cluster.WithNodes(1, node)))
}

// configDir is the folder of the manifests.
const configDir = "../../config"

// env has kubectl and Helm for a control plane.
type env struct {
	*testing.T
	cluster       *cluster.Cluster
	kubectl, helm string
}

func newEnv(t *testing.T) *env {
	t.Helper()
	c := cluster.Shared(t)
	kubectl, err := c.Kubectl(t.Context())
	require.NoError(t, err)
	helm, err := c.Helm(t.Context())
	require.NoError(t, err)
	return &env{t, c, kubectl, helm}
}

// run runs a program on the control plane, and returns its standard output.
func (e *env) run(program string, args ...string) string {
	e.Helper()
	out, err := e.try(program, args...)
	require.NoError(e, err)
	return out
}

// try is run, also at the end of a test.
func (e *env) try(program string, args ...string) (string, error) {
	cmd := exec.CommandContext(context.WithoutCancel(e.Context()), program, args...)
	home := filepath.Join(e.cluster.Dir(), "helm")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+e.cluster.Kubeconfig(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", errors.Join(err, errors.New(cmd.String()+"\n"+stdout.String()+stderr.String()))
	}
	return stdout.String(), nil
}

// object is an object of a manifest.
type object = *unstructured.Unstructured

// key identifies an object.
type key struct{ kind, namespace, name string }

func keyOf(o object) key {
	return key{o.GroupVersionKind().GroupKind().String(), o.GetNamespace(), o.GetName()}
}

// render returns the objects of a kustomization.
func (e *env) render(dir string) map[key]object {
	e.Helper()
	return e.decode(e.run(e.kubectl, "kustomize", dir))
}

func (e *env) decode(manifest string) map[key]object {
	e.Helper()
	objects := map[key]object{}
	for d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(manifest)), 4096); ; {
		o := &unstructured.Unstructured{}
		if err := d.Decode(&o.Object); errors.Is(err, io.EOF) {
			return objects
		} else if err != nil {
			e.Fatal(err)
		}
		if len(o.Object) == 0 {
			continue
		}
		if objects[keyOf(o)] != nil {
			e.Errorf("%v is twice in one manifest", keyOf(o))
		}
		objects[keyOf(o)] = o
	}
}

// deleteBase deletes config/base in the order of the documentation: the aggregated role first, which Kubernetes creates again if its
// parts are deleted with it.
func (e *env) deleteBase() {
	e.Helper()
	e.run(e.kubectl, "delete", "clusterrole", "lockstep-driver")
	e.delete(filepath.Join(configDir, "base"))
}

// delete deletes the objects of a folder. Kubernetes may delete one with another, such as the Secret of an account.
func (e *env) delete(dir string) {
	e.Helper()
	e.run(e.kubectl, "delete", "-k", dir, "--ignore-not-found")
}

// uids returns the UIDs of the objects of a manifest that exist.
func (e *env) uids(manifest string) map[key]string {
	e.Helper()
	uids := map[key]string{}
	note := func(o object) { uids[keyOf(o)] = string(o.GetUID()) }
	// kubectl prints a list, or a single object as it is.
	for _, found := range e.decode(e.run(e.kubectl, "get", "-f", manifest, "--ignore-not-found", "-o", "json")) {
		if !found.IsList() {
			note(found)
			continue
		}
		require.NoError(e, found.EachListItem(func(item runtime.Object) error {
			note(item.(object))
			return nil
		}))
	}
	return uids
}

// write writes a file of the test, and returns its path.
func (e *env) write(name, content string) string {
	e.Helper()
	return e.writeTo(e.TempDir(), name, content)
}

func (e *env) writeTo(dir, name, content string) string {
	e.Helper()
	path := filepath.Join(dir, name)
	require.NoError(e, os.WriteFile(path, []byte(content), 0o600))
	return path
}
