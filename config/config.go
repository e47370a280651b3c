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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
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
	roles, err := Objects(DriverRoles...)
	if err != nil {
		return nil, err
	}
	rules := map[string][]rbacv1.PolicyRule{}
	for _, u := range roles {
		var role rbacv1.ClusterRole
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &role); err != nil {
			return nil, fmt.Errorf("decode config/base: %w", err)
		}
		if role.AggregationRule == nil {
			rules[role.Name] = role.Rules
		}
	}
	return rules, nil
}

// Objects returns the objects of files of this folder, by their names without .yaml.
func Objects(names ...string) (all []*unstructured.Unstructured, err error) {
	manifest, err := Manifests(names...)
	if err != nil {
		return nil, err
	}
	for d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), len(manifest)); ; {
		u := &unstructured.Unstructured{}
		if err := d.Decode(&u.Object); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("decode %v: %w", names, err)
		}
		all = append(all, u)
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
