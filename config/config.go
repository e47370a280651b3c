// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package config embeds the manifests that install Lockstep, so that the program, its tests and tools use the same ones.
//
//	manifest, err := config.Manifests("admission/policy", "admission/binding") // for kubectl apply -f -
package config

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"

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

// DriverRoles are the driver's ClusterRole, and the ClusterRoles that it is the sum of.
var DriverRoles = []string{"base/role", "base/gateway", "base/ingress", "base/pools", "base/autoscalers", "base/disaggregated"}

// DriverRules returns the rules of the ClusterRoles that the driver's is the sum of, by their names.
func DriverRules() (map[string][]rbacv1.PolicyRule, error) {
	manifest, err := Manifests(DriverRoles...)
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

// Manifests returns files of this folder, by their names without .yaml, as one YAML stream.
func Manifests(names ...string) ([]byte, error) {
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
