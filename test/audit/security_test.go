// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// docs/security.md claims exactly the rights that the manifests grant. test/e2e compares it with the API server's audit log.
func TestSecurityDocumentMatchesRoles(t *testing.T) {
	claims, err := Claims("../../docs/security.md")
	require.NoError(t, err)
	for role := range claims {
		if strings.HasPrefix(role, "system:") {
			delete(claims, role) // Kubernetes defines it
		}
	}
	var manifests []byte
	for _, path := range []string{"base/role", "base/gateway", "base/ingress", "base/pools", "base/autoscalers", "base/disaggregated", "preflight/role", "deployment/lease"} {
		raw, err := os.ReadFile(filepath.Join("..", "..", "config", path+".yaml"))
		require.NoError(t, err)
		manifests = append(append(manifests, "\n---\n"...), raw...)
	}
	granted := map[string]map[Right]bool{}
	for d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), len(manifests)); ; {
		var role rbacv1.ClusterRole // a Role has the same fields
		if err := d.Decode(&role); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if len(role.Rules) > 0 {
			granted[role.Name] = rights(role.Rules)
		}
	}
	assert.Empty(t, cmp.Diff(granted, claims), "docs/security.md differs from what the manifests grant (-granted +claimed)")
}

// rights returns the rights of rules. The virtual resource of Lockstep's own permission is part of docs/permissions.md.
func rights(rules []rbacv1.PolicyRule) map[Right]bool {
	all := map[Right]bool{}
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					if group != "lockstep.dev" || resource != "releases" {
						all[RightOf(verb, group, resource)] = true
					}
				}
			}
		}
	}
	return all
}
