// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"os"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// Each part of the driver's role is in its kustomization, and has the label by which the driver's ClusterRole collects it.
func TestDriverRolesAreAggregated(t *testing.T) {
	kustomization, err := os.ReadFile("base/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range DriverRoles {
		manifest, err := Manifests(name)
		if err != nil {
			t.Fatal(err)
		}
		if file := strings.TrimPrefix(name, "base/") + ".yaml"; !strings.Contains(string(kustomization), "- "+file) {
			t.Errorf("config/base/kustomization.yaml lacks %s", file)
		}
		parts := strings.Split(string(manifest), "---\n")
		var role rbacv1.ClusterRole
		if err := yaml.Unmarshal([]byte(parts[len(parts)-1]), &role); err != nil {
			t.Fatal(err)
		}
		if role.Labels["rbac.lockstep.dev/aggregate-to-driver"] != "true" {
			t.Errorf("%s lacks the label of the driver's parts", role.Name)
		}
	}
}
