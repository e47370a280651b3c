// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// Each part of the driver's role is in its kustomization, and has the label by which the driver's ClusterRole collects it.
func TestDriverRolesAreAggregated(t *testing.T) {
	kustomization, err := os.ReadFile("base/kustomization.yaml")
	require.NoError(t, err)
	for _, name := range DriverRoles {
		manifest, err := Manifests(name)
		require.NoError(t, err)
		file := strings.TrimPrefix(name, "base/") + ".yaml"
		assert.Contains(t, string(kustomization), "- "+file, "config/base/kustomization.yaml lacks %s", file)
		parts := strings.Split(string(manifest), "---\n")
		var role rbacv1.ClusterRole
		require.NoError(t, yaml.Unmarshal([]byte(parts[len(parts)-1]), &role))
		assert.Equal(t, "true", role.Labels["rbac.lockstep.dev/aggregate-to-driver"], "%s lacks the label of the driver's parts", role.Name)
	}
}
