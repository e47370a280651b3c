// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package config holds the manifests with which Lockstep is installed, so that tests and tools run under exactly
// these.
package config

import (
	"bytes"
	"embed"
	"fmt"
)

// Names in the manifests.
const (
	// Namespace is where Lockstep is installed.
	Namespace = "lockstep-system"
	// ServiceAccount is the driver's.
	ServiceAccount = "lockstep-driver"
)

//go:embed rbac/*.yaml admission/*.yaml preflight/*.yaml argo/*.yaml argo/plugin/*.yaml kruise/*.yaml kruise/crd/*.yaml kruise/batchrelease/*.yaml
var files embed.FS

// RBAC is the driver's namespace, service account, role and binding, as one YAML stream.
func RBAC() ([]byte, error) {
	return stream("rbac/namespace", "rbac/serviceaccount", "rbac/role", "rbac/clusterrolebinding")
}

// Preflight is what lets the driver look at nodes and volumes before a release, and its binding, as one YAML stream.
func Preflight() ([]byte, error) { return stream("preflight/role", "preflight/clusterrolebinding") }

// Admission is the admission policy that keeps the hold, and its binding, as one YAML stream.
func Admission() ([]byte, error) { return stream("admission/policy", "admission/binding") }

// KruiseServiceAccount is the account of `lockstep kruise`.
const KruiseServiceAccount = "lockstep-kruise"

// Kruise is the CRD of RolloutTarget, the account and rights of `lockstep kruise`, and what Kruise's own account needs, as one
// YAML stream.
func Kruise() ([]byte, error) {
	return stream("kruise/crd/lockstep.dev_rollouttargets", "rbac/namespace", "kruise/rbac", "kruise/kruise-rights")
}

// KruiseDriver is what `lockstep kruise` needs beside that for a driver inside it, as one YAML stream.
func KruiseDriver() ([]byte, error) { return stream("rbac/role", "kruise/driver-binding") }

// BatchReleaseServiceAccount is the account of `lockstep batchrelease`.
const BatchReleaseServiceAccount = "lockstep-batchrelease"

// BatchRelease is the account and rights of `lockstep batchrelease`, as one YAML stream.
func BatchRelease() ([]byte, error) { return stream("rbac/namespace", "kruise/batchrelease/rbac") }

// BatchReleaseDriver is what `lockstep batchrelease` needs beside that for a driver that it starts, as one YAML stream.
func BatchReleaseDriver() ([]byte, error) {
	return stream("rbac/role", "kruise/batchrelease/driver-binding")
}

// ArgoRBAC is what lets Argo Rollouts' service account be the driver's too, for a driver inside the plugin, as one YAML
// stream.
func ArgoRBAC() ([]byte, error) {
	return stream("rbac/role", "argo/clusterrolebinding")
}

// ArgoPlugins is the ConfigMap that tells Argo Rollouts of the plugins.
func ArgoPlugins() ([]byte, error) {
	return stream("argo/plugin/configmap")
}

// stream puts manifests together.
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
