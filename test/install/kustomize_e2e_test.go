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
	"github.com/stretchr/testify/assert"
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
			assert.Empty(t, cmp.Diff(base[k], o), "%v is not the same in the base (-base +%s)", k, part)
		}
	}

	// Argo's and Kruise's own namespaces are not Lockstep's to create.
	dir := e.kustomization(all...)
	e.run(e.kubectl, "apply", "-k", dir)
	manifest := e.write("all.yaml", e.run(e.kubectl, "kustomize", dir))
	before := e.uids(manifest)
	require.Len(t, before, len(owner), "%d objects exist, the folders have %d", len(before), len(owner))
	for _, folder := range folders {
		dir := filepath.Join(configDir, folder)
		e.delete(dir)
		want := maps.Clone(before)
		maps.DeleteFunc(want, func(k key, _ string) bool { return owner[k] == folder })
		assert.Empty(t, cmp.Diff(want, e.uids(manifest)), "after kubectl delete -k config/%s (-want +got)", folder)
		e.run(e.kubectl, "apply", "-k", dir)
		before = e.uids(manifest)
	}
	for _, folder := range folders {
		e.delete(filepath.Join(configDir, folder))
	}
	for k := range e.uids(manifest) {
		assert.Equal(t, "base", owner[k], "%v of config/%s still exists", k, owner[k])
	}
	e.deleteBase()
	assert.Empty(t, e.uids(manifest), "these still exist after the base was deleted")
}

// combines tests that one kustomization of the folders has the objects of each, and that no two folders have one in common. It returns
// the folder of each object.
func (e *env) combines(folders []string) map[key]string {
	e.Helper()
	owner, want := map[key]string{}, map[key]object{}
	for _, folder := range folders {
		for k, o := range e.render(filepath.Join(configDir, folder)) {
			assert.Empty(e, owner[k], "%v is in %s and in %s: removing one removes it from the other", k, owner[k], folder)
			owner[k], want[k] = folder, o
		}
	}
	assert.Empty(e, cmp.Diff(want, e.render(e.kustomization(folders...))),
		"a kustomization of %v has other objects (-folders +kustomization)", folders)
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
			require.NotNil(t, objects[account], "no %v", account)
			for k, o := range objects {
				assert.False(t, k.namespace != "" && k.namespace != "argo-rollouts", "%v is not in Argo's namespace", k)
				if !strings.HasPrefix(k.kind, "ClusterRoleBinding") {
					continue
				}
				subjects, _, err := unstructured.NestedSlice(o.Object, "subjects")
				require.NoError(t, err)
				want := []any{map[string]any{"kind": account.kind, "namespace": account.namespace, "name": account.name}}
				assert.Empty(t, cmp.Diff(want, subjects), "%v is not bound to Argo's account (-want +got)", k)
			}
			deployment := objects[key{"Deployment.apps", "argo-rollouts", "argo-rollouts"}]
			init, _, err := unstructured.NestedSlice(deployment.Object, "spec", "template", "spec", "initContainers")
			assert.True(t, err == nil && len(init) == 1 && init[0].(map[string]any)["image"] == "registry.example.com/lockstep:dev",
				"Argo's init containers are %v, %v", init, err)
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
