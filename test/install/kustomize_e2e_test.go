// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package install

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// folders are the folders over config/base that can be combined.
var folders = []string{
	"deployment", "kruise/crd", "kruise", "kruise/batchrelease", "argo/rbac", "argo/remote/rbac", "admission", "disaggregated", "preflight", "access-aggregated",
	"monitoring",
}

// All folders together, from one kustomization; then each is removed beside all others, which keep every object, and applied again. The
// base is removed last.
//
// Proves (test): kustomize: parts share no object and are removed alone; with Argo's manifests.
func TestFolders(t *testing.T) {
	e := newEnv(t)
	e.operator()
	all := append([]string{"base"}, folders...)
	owner := e.combines(all)
	// The variant for one namespace takes the place of the Deployment's folder.
	variant := slices.Clone(all)
	variant[slices.Index(variant, "deployment")] = "namespaced"
	e.combines(variant)
	base := e.render(filepath.Join(configDir, "base"))
	for _, part := range []string{"access", "permissions"} {
		for k, o := range e.render(filepath.Join(configDir, part)) {
			if diff := cmp.Diff(base[k], o); diff != "" {
				t.Errorf("%v is not the same in the base (-base +%s):\n%s", k, part, diff)
			}
		}
	}

	// Argo's and Kruise's own namespaces are not Lockstep's to create.
	dir := e.kustomization(all...)
	e.run(e.kubectl, "apply", "-k", dir)
	manifest := e.write("all.yaml", e.run(e.kubectl, "kustomize", dir))
	before := e.uids(manifest)
	if len(before) != len(owner) {
		t.Fatalf("%d objects exist, the folders have %d", len(before), len(owner))
	}
	for _, folder := range folders {
		dir := filepath.Join(configDir, folder)
		e.delete(dir)
		want := maps.Clone(before)
		maps.DeleteFunc(want, func(k key, _ string) bool { return owner[k] == folder })
		if diff := cmp.Diff(want, e.uids(manifest)); diff != "" {
			t.Errorf("after kubectl delete -k config/%s (-want +got):\n%s", folder, diff)
		}
		e.run(e.kubectl, "apply", "-k", dir)
		before = e.uids(manifest)
	}
	for _, folder := range folders {
		e.delete(filepath.Join(configDir, folder))
	}
	for k := range e.uids(manifest) {
		if owner[k] != "base" {
			t.Errorf("%v of config/%s still exists", k, owner[k])
		}
	}
	e.deleteBase()
	if left := e.uids(manifest); len(left) > 0 {
		t.Errorf("these still exist after the base was deleted: %v", left)
	}
}

// combines tests that one kustomization of the folders has the objects of each, and that no two folders have one in common. It returns
// the folder of each object.
func (e *env) combines(folders []string) map[key]string {
	e.Helper()
	owner, want := map[key]string{}, map[key]object{}
	for _, folder := range folders {
		for k, o := range e.render(filepath.Join(configDir, folder)) {
			if owner[k] != "" {
				e.Errorf("%v is in %s and in %s: removing one removes it from the other", k, owner[k], folder)
			}
			owner[k], want[k] = folder, o
		}
	}
	if diff := cmp.Diff(want, e.render(e.kustomization(folders...))); diff != "" {
		e.Errorf("a kustomization of %v has other objects (-folders +kustomization):\n%s", folders, diff)
	}
	return owner
}

// kustomization writes a kustomization of folders of config, and returns its folder.
func (e *env) kustomization(folders ...string) string {
	e.Helper()
	dir := e.TempDir()
	resources := make([]string, len(folders))
	for i, folder := range folders {
		resources[i] = e.relative(dir, filepath.Join(configDir, folder))
	}
	return filepath.Dir(e.writeTo(dir, "kustomization.yaml", "resources: ["+strings.Join(resources, ", ")+"]\n"))
}

// relative returns a path from a folder, as a kustomization refers to another one.
func (e *env) relative(dir, path string) string {
	e.Helper()
	absolute, err := filepath.Abs(path)
	if err == nil {
		path, err = filepath.Rel(dir, absolute)
	}
	require.NoError(e, err)
	return path
}

// The kustomization of docs/argo-rollouts.md, with Argo's own manifests: the plugins are in Argo's Deployment, and the bindings are of
// the account under which it runs.
//
// Proves (test): kustomize: parts share no object and are removed alone; with Argo's manifests.
func TestArgoComponent(t *testing.T) {
	e := newEnv(t)
	e.run(e.kubectl, "apply", "-k", filepath.Join(configDir, "base"))
	t.Cleanup(e.deleteBase)
	for _, component := range []string{"argo", "argo/remote"} {
		t.Run(strings.ReplaceAll(component, "/", "-"), func(t *testing.T) {
			e := newEnv(t)
			dir := e.argoKustomization(component)
			objects := e.render(dir)
			account := key{"ServiceAccount", "argo-rollouts", "argo-rollouts"}
			if objects[account] == nil {
				t.Fatalf("no %v", account)
			}
			for k, o := range objects {
				if k.namespace != "" && k.namespace != "argo-rollouts" {
					t.Errorf("%v is not in Argo's namespace", k)
				}
				if !strings.HasPrefix(k.kind, "ClusterRoleBinding") {
					continue
				}
				subjects, _, err := unstructured.NestedSlice(o.Object, "subjects")
				require.NoError(t, err)
				want := []any{map[string]any{"kind": account.kind, "namespace": account.namespace, "name": account.name}}
				if diff := cmp.Diff(want, subjects); diff != "" {
					t.Errorf("%v is not bound to Argo's account (-want +got):\n%s", k, diff)
				}
			}
			deployment := objects[key{"Deployment.apps", "argo-rollouts", "argo-rollouts"}]
			init, _, err := unstructured.NestedSlice(deployment.Object, "spec", "template", "spec", "initContainers")
			if err != nil || len(init) != 1 || init[0].(map[string]any)["image"] != "registry.example.com/lockstep:dev" {
				t.Errorf("Argo's init containers are %v, %v", init, err)
			}
			e.run(e.kubectl, "create", "namespace", "argo-rollouts")
			t.Cleanup(func() { e.run(e.kubectl, "delete", "namespace", "argo-rollouts") })
			e.run(e.kubectl, "apply", "--server-side", "-k", dir)
			e.run(e.kubectl, "-n", "argo-rollouts", "rollout", "status", "deployment/argo-rollouts", "--timeout=2m")
			e.run(e.kubectl, "delete", "-k", dir)
		})
	}
}

// argoKustomization writes the kustomization of the documentation, and returns its folder.
func (e *env) argoKustomization(component string) string {
	e.Helper()
	argo, err := e.cluster.ArgoManifests(e.Context())
	require.NoError(e, err)
	dir := e.TempDir()
	return filepath.Dir(e.writeTo(dir, "kustomization.yaml", fmt.Sprintf(`
namespace: argo-rollouts
resources: [%s]
components: [%s]
images: [{name: lockstep, newName: registry.example.com/lockstep, newTag: dev}]
`, e.relative(dir, filepath.Join(argo, "cluster-install")), e.relative(dir, filepath.Join(configDir, component)))))
}
