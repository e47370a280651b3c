// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"errors"
	"fmt"
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
	"k8s.io/client-go/kubernetes/fake"
)

func line(id, stage, verb, namespace, resource, name string) string {
	return fmt.Sprintf(`{"kind":"Event","auditID":%q,"stage":%q,"requestURI":"/api/%s","verb":%q,"user":{"username":"u"},`+
		`"objectRef":{"resource":%q,"namespace":%q,"name":%q},"responseStatus":{"code":200},"requestReceivedTimestamp":"2026-01-02T03:04:05.678901Z"}`+"\n",
		id, stage, name, verb, resource, namespace, name)
}

var log = line("1", "ResponseStarted", "watch", "a", "pods", "") +
	line("2", "ResponseComplete", "create", "b", "pods", "p") +
	line("1", "ResponseComplete", "watch", "a", "pods", "") +
	line("3", "ResponseComplete", "get", "", "", "healthz")

func names(events []Event) []string {
	all := []string{}
	for _, e := range events {
		all = append(all, e.String())
	}
	return all
}

func TestReadReturnsEachRequestOnce(t *testing.T) {
	for _, test := range []struct {
		name, log, containing string
		want                  []string
	}{
		{"whole", log, "", []string{"watch pods", "create pods", "get /api/healthz"}},
		{"one namespace", log, `"namespace":"b"`, []string{"create pods"}},
		{"unfinished last line", log + `{"auditID":"4","ve`, "", []string{"watch pods", "create pods", "get /api/healthz"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			events, err := Read(strings.NewReader(test.log), test.containing)
			require.NoError(t, err)
			assert.Empty(t, cmp.Diff(test.want, names(events)))
		})
	}
	_, err := Read(strings.NewReader("{\n"+log), "")
	assert.Error(t, err, "no error for an invalid line in the middle")
}

func TestBetween(t *testing.T) {
	kube := fake.NewClientset()
	from, to := Mark(t, kube, "a"), Mark(t, kube, "a")
	mark := func(name string) string { return line(name, "ResponseComplete", "get", "a", "configmaps", name) }
	path := filepath.Join(t.TempDir(), "audit.log")
	before, after := line("x", "ResponseComplete", "list", "a", "nodes", ""), line("y", "ResponseComplete", "delete", "a", "nodes", "n")
	require.NoError(t, os.WriteFile(path, []byte(before+mark(from)+log+mark(to)+after), 0o600))
	assert.Empty(t, cmp.Diff([]string{"watch pods", "create pods", "get /api/healthz"}, names(Between(t, path, from, to, ""))))
	got := names(Between(t, path, "", to, `"verb":"list"`))
	assert.True(t, cmp.Equal(got, []string{"list nodes"}), "from the start of the log: %v", got)
}

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
