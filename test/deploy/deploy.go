// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package deploy has the manifests of package config as tests and the demo apply them, each a YAML stream.
//
//	err := cluster.ApplyConfig(ctx, config.Namespace, deploy.RBAC)
package deploy

import (
	"slices"

	"github.com/lockstep-rollouts/lockstep/config"
)

// RBAC returns the driver's namespace, service account, roles and binding.
func RBAC() ([]byte, error) {
	return config.Manifests(slices.Concat([]string{"base/namespace", "deployment/serviceaccount"}, config.DriverRoles,
		[]string{"deployment/clusterrolebinding", "deployment/auth-delegator"})...)
}

// Access returns the roles that let people and hosts see or drive releases.
func Access() ([]byte, error) { return config.Manifests("access/roles") }

// Permissions returns the policies that check the permission on releases.lockstep.dev in the API server and limit the driver's
// account, and their bindings.
func Permissions() ([]byte, error) {
	return config.Manifests("permissions/marks", "permissions/hosts", "permissions/driver")
}

// Disaggregated returns the kind of the bounds of DisaggregatedSets, and the policies that enforce them.
func Disaggregated() ([]byte, error) {
	return config.Manifests("disaggregated/crd", "disaggregated/children", "disaggregated/scale", "disaggregated/deletions", "disaggregated/bounds")
}

// NamespacedBounds returns the role that lets a driver of one namespace read whether bounds are enforced, and its binding.
func NamespacedBounds() ([]byte, error) { return config.Manifests("namespaced/bounds") }

// Preflight returns the role that lets the driver read nodes and volumes for preflight, and its binding.
func Preflight() ([]byte, error) {
	return config.Manifests("preflight/role", "preflight/clusterrolebinding")
}

// Admission returns the admission policy that keeps the hold, and its binding.
func Admission() ([]byte, error) { return config.Manifests("admission/policy", "admission/binding") }

// KruiseServiceAccount is the account of `lockstep kruise`.
const KruiseServiceAccount = "lockstep-kruise"

// Kruise returns the CRD of RolloutTarget, the account and permissions of `lockstep kruise`, and those that Kruise's own account
// needs.
func Kruise() ([]byte, error) {
	return config.Manifests("kruise/crd/lockstep.dev_rollouttargets", "base/namespace", "kruise/rbac", "kruise/kruise-rights")
}

// KruiseDriver returns what `lockstep kruise` also needs for a driver inside its process.
func KruiseDriver() ([]byte, error) {
	return config.Manifests(append(slices.Clone(config.DriverRoles), "kruise/driver-binding")...)
}

// BatchReleaseServiceAccount is the account of `lockstep batchrelease`.
const BatchReleaseServiceAccount = "lockstep-batchrelease"

// BatchRelease returns the account and permissions of `lockstep batchrelease`.
func BatchRelease() ([]byte, error) {
	return config.Manifests("base/namespace", "kruise/batchrelease/rbac")
}

// BatchReleaseDriver returns what `lockstep batchrelease` also needs for a driver that it launches.
func BatchReleaseDriver() ([]byte, error) {
	return config.Manifests(append(slices.Clone(config.DriverRoles), "kruise/batchrelease/driver-binding")...)
}

// ArgoRBAC returns the driver's roles, bound to Argo Rollouts' service account for a driver inside the plugin.
func ArgoRBAC() ([]byte, error) {
	return config.Manifests(append(slices.Clone(config.DriverRoles), "argo/rbac/clusterrolebinding")...)
}

// ArgoPlugins returns the ConfigMap of Argo Rollouts with the plugins.
func ArgoPlugins() ([]byte, error) { return config.Manifests("argo/plugin/configmap") }
