// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package config embeds the manifests that install Lockstep, so that tests and tools use the same ones.
//
//	manifest, err := config.RBAC() // for kubectl apply -f -
package config

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// Names in the manifests.
const (
	// Namespace is the namespace of Lockstep.
	Namespace = "lockstep-system"
	// ServiceAccount is the account of the driver.
	ServiceAccount = "lockstep-driver"
)

//go:embed base/*.yaml deployment/*.yaml access/*.yaml admission/*.yaml preflight/*.yaml namespaced/*.yaml permissions/*.yaml disaggregated/*.yaml argo/rbac/*.yaml argo/plugin/*.yaml kruise/*.yaml kruise/crd/*.yaml kruise/batchrelease/*.yaml
var files embed.FS

// driverRoles are the driver's ClusterRole, and the ClusterRoles that it is the sum of.
var driverRoles = []string{"base/role", "base/gateway", "base/ingress", "base/pools", "base/autoscalers", "base/disaggregated"}

// RBAC returns the driver's namespace, service account, roles and binding, as one YAML stream.
func RBAC() ([]byte, error) {
	return stream(slices.Concat([]string{"base/namespace", "deployment/serviceaccount"}, driverRoles,
		[]string{"deployment/clusterrolebinding", "deployment/auth-delegator"})...)
}

// DriverRules returns the rules of the ClusterRoles that the driver's is the sum of, by their names.
func DriverRules() (map[string][]rbacv1.PolicyRule, error) {
	manifest, err := stream(driverRoles...)
	if err != nil {
		return nil, err
	}
	rules := map[string][]rbacv1.PolicyRule{}
	for d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), len(manifest)); ; {
		var role rbacv1.ClusterRole
		if err := d.Decode(&role); errors.Is(err, io.EOF) {
			return rules, nil
		} else if err != nil {
			return nil, fmt.Errorf("decode config/base: %w", err)
		}
		if role.AggregationRule == nil {
			rules[role.Name] = role.Rules
		}
	}
}

// Access returns the roles that let people and hosts see or drive releases, as one YAML stream.
func Access() ([]byte, error) { return stream("access/roles") }

// Permissions returns the policies that check the permission on releases.lockstep.dev in the API server and limit the driver's
// account, and their bindings, as one YAML stream.
func Permissions() ([]byte, error) {
	return stream("permissions/marks", "permissions/hosts", "permissions/driver")
}

// Disaggregated returns the kind of the bounds of DisaggregatedSets, and the policies that enforce them, as one YAML stream.
func Disaggregated() ([]byte, error) {
	return stream("disaggregated/crd", "disaggregated/children", "disaggregated/scale", "disaggregated/bounds")
}

// NamespacedBounds returns the role that lets a driver of one namespace read whether bounds are enforced, and its binding, as one YAML stream.
func NamespacedBounds() ([]byte, error) { return stream("namespaced/bounds") }

// Preflight returns the role that lets the driver read nodes and volumes for preflight, and its binding, as one YAML stream.
func Preflight() ([]byte, error) { return stream("preflight/role", "preflight/clusterrolebinding") }

// Admission returns the admission policy that keeps the hold, and its binding, as one YAML stream.
func Admission() ([]byte, error) { return stream("admission/policy", "admission/binding") }

// KruiseServiceAccount is the account of `lockstep kruise`.
const KruiseServiceAccount = "lockstep-kruise"

// Kruise returns the CRD of RolloutTarget, the account and permissions of `lockstep kruise`, and those that Kruise's own account
// needs, as one YAML stream.
func Kruise() ([]byte, error) {
	return stream("kruise/crd/lockstep.dev_rollouttargets", "base/namespace", "kruise/rbac", "kruise/kruise-rights")
}

// KruiseDriver returns what `lockstep kruise` also needs for a driver inside its process, as one YAML stream.
func KruiseDriver() ([]byte, error) {
	return stream(append(slices.Clone(driverRoles), "kruise/driver-binding")...)
}

// BatchReleaseServiceAccount is the account of `lockstep batchrelease`.
const BatchReleaseServiceAccount = "lockstep-batchrelease"

// BatchRelease returns the account and permissions of `lockstep batchrelease`, as one YAML stream.
func BatchRelease() ([]byte, error) { return stream("base/namespace", "kruise/batchrelease/rbac") }

// BatchReleaseDriver returns what `lockstep batchrelease` also needs for a driver that it launches, as one YAML stream.
func BatchReleaseDriver() ([]byte, error) {
	return stream(append(slices.Clone(driverRoles), "kruise/batchrelease/driver-binding")...)
}

// ArgoRBAC returns the driver's roles, bound to Argo Rollouts' service account for a driver inside the plugin, as one YAML
// stream.
func ArgoRBAC() ([]byte, error) {
	return stream(append(slices.Clone(driverRoles), "argo/rbac/clusterrolebinding")...)
}

// ArgoPlugins returns the ConfigMap of Argo Rollouts with the plugins.
func ArgoPlugins() ([]byte, error) {
	return stream("argo/plugin/configmap")
}

func stream(names ...string) ([]byte, error) {
	var all bytes.Buffer
	for i, name := range names {
		raw, err := files.ReadFile(name + ".yaml")
		if err != nil {
			return nil, fmt.Errorf("read manifest: %w", err)
		}
		if i > 0 {
			all.WriteString("---\n")
		}
		all.Write(raw)
	}
	return all.Bytes(), nil
}
