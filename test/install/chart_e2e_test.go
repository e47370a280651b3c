// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package install

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	release   = "lockstep"
	namespace = "lockstep-system"
)

// The chart renders the objects of the kustomizations.
//
// Proves (test): The chart: equal to kustomize; values; installed, upgraded, uninstalled.
func TestChartEqualsKustomize(t *testing.T) {
	for _, test := range []struct {
		name, values string
		folders      []string
	}{
		{"default", "", []string{"base", "deployment"}},
		{"without the driver", "driver: {enabled: false}", []string{"base"}},
		{"one namespace", "driver: {namespace: team-a}", []string{"base", "namespaced"}},
		{"hold and preflight", "policies: {hold: true}\npermissions: {preflight: true}", []string{"base", "deployment", "admission", "preflight"}},
		{"disaggregated sets", "policies: {disaggregated: true}", []string{"base", "deployment", "disaggregated"}},
		{"aggregated roles", "permissions: {aggregate: true}", []string{"base", "deployment", "access-aggregated"}},
		{"kruise", "kruise: {enabled: true}", []string{"base", "deployment", "kruise", "kruise/crd"}},
		{"monitoring", "monitoring: {enabled: true}", []string{"base", "deployment", "monitoring"}},
		{"batchrelease", "batchRelease: {enabled: true}", []string{"base", "deployment", "kruise/batchrelease"}},
		{"argo", "argo: {enabled: true}", []string{"base", "deployment", "argo/rbac"}},
		{"argo with a server", "argo: {enabled: true, driver: server}", []string{"base", "deployment", "argo/remote/rbac"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := newEnv(t)
			got := e.decode(e.run(e.helm, "template", release, e.chart(), "-n", namespace, "-f",
				e.write("values.yaml", test.values)))
			want := map[key]object{}
			for _, folder := range test.folders {
				maps.Copy(want, e.render(filepath.Join(configDir, folder)))
			}
			// What only the chart has, or only kustomize.
			for _, k := range []key{
				{"Secret", namespace, "lockstep-tls"},
				{"ConfigMap", namespace, "lockstep-ca"},
				{"PodDisruptionBudget.policy", namespace, "lockstep-kruise"},
				{"PodDisruptionBudget.policy", namespace, "lockstep-batchrelease"},
			} {
				delete(got, k)
			}
			delete(want, key{"Namespace", "", namespace})
			e.sumRoles(want)
			for _, o := range got {
				annotations := o.GetAnnotations()
				if delete(annotations, "helm.sh/resource-policy"); len(annotations) == 0 {
					annotations = nil
				}
				o.SetAnnotations(annotations)
			}
			for _, o := range slices.Concat(slices.Collect(maps.Values(got)), slices.Collect(maps.Values(want))) {
				if o.GetKind() == "Deployment" {
					e.dropImage(o)
				}
			}
			// Line breaks in expressions of policies have no meaning, and kustomize adds some.
			words := cmp.Comparer(func(a, b string) bool { return slices.Equal(strings.Fields(a), strings.Fields(b)) })
			assert.Empty(t, cmp.Diff(want, got, words), "-kustomize +chart")
		})
	}
}

// Values reach the pods.
//
// Proves (test): The chart: equal to kustomize; values; installed, upgraded, uninstalled.
func TestChartValues(t *testing.T) {
	e := newEnv(t)
	e.run(e.helm, "lint", "--strict", e.chart())
	objects := e.decode(e.run(e.helm, "template", release, e.chart(), "-n", "elsewhere", "-f", e.write("values.yaml", `
image: {digest: "sha256:`+strings.Repeat("a", 64)+`"}
imagePullSecrets: [{name: registry}]
driver:
  replicas: 2
  args: [--max-groups-in-flight=8]
  env: &env [{name: HTTPS_PROXY, value: "http://proxy:3128"}]
  tls: {source: cert-manager, secretName: certificate, issuerRef: {kind: ClusterIssuer, name: ca}}
  pod:
    resources: {requests: {cpu: "1"}}
    nodeSelector: {pool: infra}
    labels: {team: platform, app.kubernetes.io/name: ignored}
    annotations: {note: here}
argo: {enabled: true, namespace: rollouts, serviceAccount: controller}
kruise: {enabled: true, env: *env, args: [--max-groups-in-flight=8]}
batchRelease: {enabled: true, env: [{name: GOMEMLIMIT, value: 1GiB}], args: ["--driver=dns:///lockstep:9443"]}
`)))
	for _, name := range []string{"lockstep", "lockstep-kruise", "lockstep-batchrelease"} {
		container := e.container(objects[key{"Deployment.apps", "elsewhere", name}])
		if want := "ghcr.io/lockstep-rollouts/lockstep@sha256:" + strings.Repeat("a", 64); container["image"] != want {
			t.Errorf("%s has the image %v, want %s", name, container["image"], want)
		}
		want := []any{map[string]any{"name": "GOMEMLIMIT", "value": "200MiB"}, map[string]any{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}}
		if name == "lockstep-batchrelease" { // it replaces the manifest's own: server-side apply refuses a name that occurs twice
			want = []any{map[string]any{"name": "GOMEMLIMIT", "value": "1GiB"}}
		}
		assert.Empty(t, cmp.Diff(want, container["env"]), "the environment of %s (-want +got)", name)
	}
	deployment := objects[key{"Deployment.apps", "elsewhere", "lockstep"}]
	for want, path := range map[string][]string{
		"2":                    {"spec", "replicas"},
		"map[pool:infra]":      {"spec", "template", "spec", "nodeSelector"},
		"[map[name:registry]]": {"spec", "template", "spec", "imagePullSecrets"},
		"map[note:here]":       {"spec", "template", "metadata", "annotations"},
		"map[app.kubernetes.io/name:lockstep team:platform]": {"spec", "template", "metadata", "labels"},
	} {
		got, _, err := unstructured.NestedFieldNoCopy(deployment.Object, path...)
		assert.True(t, err == nil && fmt.Sprint(got) == want, "%s is %v, want %s (%v)", strings.Join(path, "."), got, want, err)
	}
	text := e.run(e.helm, "template", release, e.chart(), "-n", "elsewhere", "--set", "kruise.enabled=true", "--set", "batchRelease.enabled=true")
	assert.NotContains(t, text, namespace, "a chart in namespace elsewhere names %s", namespace)
	for _, o := range objects {
		if o.GetKind() == "Secret" {
			t.Errorf("with cert-manager the chart makes Secret %s", o.GetName())
		}
	}
	assert.NotNil(t, objects[key{"Certificate.cert-manager.io", "elsewhere", "certificate"}], "no Certificate")
	binding := objects[key{"ClusterRoleBinding.rbac.authorization.k8s.io", "", "lockstep-argo-rollouts"}]
	if subjects, _, err := unstructured.NestedSlice(binding.Object, "subjects"); err != nil || len(subjects) != 1 ||
		subjects[0].(map[string]any)["namespace"] != "rollouts" || subjects[0].(map[string]any)["name"] != "controller" {
		t.Errorf("Argo's binding is of %v (%v)", subjects, err)
	}
	// Namespaces and accounts may be numbers, and lists be left blank.
	objects = e.decode(e.run(e.helm, "template", release, e.chart(), "-n", "2026", "-f", e.write("odd.yaml", `
driver: {args: , namespace: "2027", tls: {secretName: "2028"}}
kruise: {enabled: true, args: , manager: {namespace: "2029", serviceAccount: "2030"}}
`)))
	for _, name := range []string{"lockstep", "lockstep-kruise"} {
		assert.NotNil(t, objects[key{"Deployment.apps", "2026", name}], "no Deployment %s in namespace 2026", name)
	}
	assert.NotNil(t, objects[key{"Secret", "2026", "2028"}], "no Secret 2028")
	subjects, _, err := unstructured.NestedSlice(objects[key{"ClusterRoleBinding.rbac.authorization.k8s.io", "", "kruise-rollout-lockstep"}].Object, "subjects")
	assert.True(t, err == nil && len(subjects) == 1 && subjects[0].(map[string]any)["namespace"] == "2029" && subjects[0].(map[string]any)["name"] == "2030",
		"Kruise's binding is of %v (%v)", subjects, err)
	for enabled, calls := range map[string]bool{"true": true, "false": false} {
		_, notes, _ := strings.Cut(e.run(e.helm, "install", release, e.chart(), "-n", "elsewhere", "--dry-run=client", "--set", "driver.enabled="+enabled), "NOTES:")
		assert.True(t, strings.Contains(notes, "--clusterrole=lockstep-operator") && strings.Contains(notes, "this driver") == calls,
			"driver.enabled=%s: the notes are %s", enabled, notes)
	}
	for value, message := range map[string]string{
		"image.digest=latest":            "image/digest",
		"driver.tls.source=self":         "driver/tls/source",
		"driver.tls.source=cert-manager": "driver.tls.issuerRef.name is empty",
		"driver.env[0].value=x":          "driver/env/0",
		"permissions.gatway=true":        "gatway",
		"driver.pod.nodeSelector.a=true": "driver/pod/nodeSelector",
		// Each has a driver of its own.
		"driver.args={--max-groups-in-flight=8},kruise.enabled=true":       "lockstep-kruise",
		"driver.args={--max-groups-in-flight=8},batchRelease.enabled=true": "lockstep-batchrelease",
	} {
		_, err := e.try(e.helm, "template", release, e.chart(), "--set", value)
		assert.ErrorContains(t, err, message, "--set %s: %v, want an error that names %s", value, err, message)
	}
}

// An earlier chart is installed, upgraded to this one, uninstalled, and this one is installed again. The kind is upgraded and kept, and
// with it its objects.
//
// Proves (test): The chart: equal to kustomize; values; installed, upgraded, uninstalled.
func TestChartLifecycle(t *testing.T) {
	e := newEnv(t)
	const target = `
apiVersion: lockstep.dev/v1alpha1
kind: RolloutTarget
metadata: {name: kept, namespace: default}
spec: {workloadRef: {name: model}}
`
	flags := []string{"-n", namespace, "--set", "kruise.enabled=true", "--set", "policies.hold=true", "--wait"}
	t.Cleanup(func() {
		e.run(e.kubectl, "delete", "crd", "rollouttargets.lockstep.dev", "--ignore-not-found")
		e.run(e.kubectl, "delete", "namespace", namespace, "--ignore-not-found")
	})
	e.run(e.helm, append([]string{"install", release, e.earlierChart(), "--create-namespace"}, flags...)...)
	e.run(e.kubectl, "apply", "-f", e.write("target.yaml", target))
	e.run(e.kubectl, "get", "clusterrole", "lockstep-obsolete")
	secret := e.get("secret/lockstep-tls", "{.data}")

	e.run(e.helm, append([]string{"upgrade", release, e.chart(), "--set", "image.tag=upgraded"}, flags...)...)
	assert.Equal(t, secret, e.get("secret/lockstep-tls", "{.data}"), "the upgrade replaced the certificate")
	assert.Equal(t, "ghcr.io/lockstep-rollouts/lockstep:upgraded", e.get("deployment/lockstep", "{.spec.template.spec.containers[0].image}"),
		"the image")
	got := e.get("crd/rollouttargets.lockstep.dev", "{.spec.versions[0].schema.openAPIV3Schema.description}")
	assert.True(t, strings.HasPrefix(got, "RolloutTarget"), "the upgrade did not upgrade the CRD: %q", got)
	assert.Empty(t, e.run(e.kubectl, "get", "clusterrole", "lockstep-obsolete", "--ignore-not-found"), "the upgrade kept what this chart lacks")

	manifest := e.write("release.yaml", e.run(e.helm, "get", "manifest", release, "-n", namespace))
	before := e.uids(manifest)
	crd := key{"CustomResourceDefinition.apiextensions.k8s.io", "", "rollouttargets.lockstep.dev"}
	require.True(t, before[crd] != "" && len(before) >= 36, "%d objects of the release exist, with the CRD: %q", len(before), before[crd])
	e.run(e.helm, "uninstall", release, "-n", namespace, "--wait")
	assert.Empty(t, cmp.Diff(map[key]string{crd: before[crd]}, e.uids(manifest)), "what is left after helm uninstall (-want +got)")
	e.run(e.kubectl, "get", "rollouttarget", "kept", "-n", "default")

	e.run(e.helm, append([]string{"install", release, e.chart()}, flags...)...)
	if again := e.uids(manifest); again[crd] != before[crd] || len(again) != len(before) {
		t.Errorf("installed again, %d objects exist with the CRD %q; want %d and the kept one, %q", len(again), again[crd], len(before), before[crd])
	}
	e.run(e.kubectl, "get", "rollouttarget", "kept", "-n", "default")
	e.run(e.helm, "uninstall", release, "-n", namespace, "--wait")
}

func (e *env) chart() string { return filepath.Join(configDir, "chart") }

// earlierChart returns a chart like this one, with a role that this one lacks and an older CRD.
func (e *env) earlierChart() string {
	e.Helper()
	dir := e.TempDir()
	e.run(e.helm, "package", e.chart(), "--version", "0.0.0-earlier", "-d", dir)
	e.run("tar", "-xzf", filepath.Join(dir, "lockstep-0.0.0-earlier.tgz"), "-C", dir)
	chart := filepath.Join(dir, "lockstep")
	e.writeTo(chart, "templates/obsolete.yaml",
		"apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: lockstep-obsolete}\n")
	const file = "files/kruise/crd/lockstep.dev_rollouttargets.yaml"
	crd, err := os.ReadFile(filepath.Join(chart, file))
	require.NoError(e, err)
	older := strings.Replace(string(crd), "description: |-\n          RolloutTarget", "description: |-\n          Earlier RolloutTarget", 1)
	require.NotEqual(e, string(crd), older, "the CRD has no description to change")
	e.writeTo(chart, file, older)
	return chart
}

// get returns a field of an object in Lockstep's namespace.
func (e *env) get(object, path string) string {
	e.Helper()
	return e.run(e.kubectl, "get", object, "-n", namespace, "-o", "jsonpath="+path)
}

// sumRoles replaces the parts of the driver's role by their sum.
func (e *env) sumRoles(objects map[key]object) {
	e.Helper()
	const kind = "ClusterRole.rbac.authorization.k8s.io"
	sum := objects[key{kind, "", "lockstep-driver"}]
	var rules []any
	for _, part := range []string{"core", "gateway", "ingress", "pools", "autoscalers", "disaggregated"} {
		k := key{kind, "", "lockstep-driver-" + part}
		own, _, err := unstructured.NestedSlice(objects[k].Object, "rules")
		require.NoError(e, err)
		rules = append(rules, own...)
		delete(objects, k)
	}
	delete(sum.Object, "aggregationRule")
	sum.Object["rules"] = rules
}

// dropImage removes the image, which the user of kustomize sets.
func (e *env) dropImage(deployment object) {
	e.Helper()
	container := e.container(deployment)
	delete(container, "image")
	delete(container, "imagePullPolicy")
}

// container returns the only container of a Deployment, not a copy.
func (e *env) container(deployment object) map[string]any {
	e.Helper()
	require.NotNil(e, deployment, "no Deployment")
	containers, _, err := unstructured.NestedFieldNoCopy(deployment.Object, "spec", "template", "spec", "containers")
	if list, ok := containers.([]any); err == nil && ok && len(list) == 1 {
		return list[0].(map[string]any)
	}
	e.Fatalf("the containers of %s are %v, %v", deployment.GetName(), containers, err)
	return nil
}
