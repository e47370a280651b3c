// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tenant adds users with few permissions to a test cluster.
//
//	editor, operator := tenant.Pair(t, c, "team-a", rule)
//	err := tenant.Refused(editor.Create(resource, manifest), "team-a")
package tenant

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-rollouts/lockstep/internal/access"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// Drive is the permission to drive releases.
func Drive() rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{access.Group}, Resources: []string{access.Resource}, Verbs: []string{string(access.Drive)}}
}

// User is a service account that acts in its namespace.
type User struct {
	dynamic.Interface
	t         testing.TB
	namespace string
}

// Pair creates two users with these permissions in a namespace: one who may not drive releases there, and one who may.
func Pair(t testing.TB, c *cluster.Cluster, namespace string, rules ...rbacv1.PolicyRule) (editor, operator User) {
	t.Helper()
	return New(t, c, namespace, "editor", map[string][]rbacv1.PolicyRule{namespace: rules}),
		New(t, c, namespace, "operator", map[string][]rbacv1.PolicyRule{namespace: append(rules, Drive())})
}

// Create creates the object of a manifest.
func (u User) Create(resource schema.GroupVersionResource, manifest string) error {
	u.t.Helper()
	object := &unstructured.Unstructured{}
	require.NoError(u.t, yaml.Unmarshal([]byte(manifest), &object.Object))
	_, err := u.Resource(resource).Namespace(u.namespace).Create(u.t.Context(), object, metav1.CreateOptions{})
	return err
}

// Patch applies a JSON merge patch as a dry run.
func (u User) Patch(resource schema.GroupVersionResource, name, patch string, subresources ...string) error {
	_, err := u.Resource(resource).Namespace(u.namespace).Patch(u.t.Context(), name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, subresources...)
	return err
}

// New creates a service account in a namespace and grants it rules in each of some namespaces.
func New(t testing.TB, c *cluster.Cluster, namespace, name string, rules map[string][]rbacv1.PolicyRule) User {
	t.Helper()
	return User{dynamic.NewForConfigOrDie(Account(t, c, namespace, name, rules)), t, namespace}
}

// Account is [New] that returns the account's configuration.
func Account(t testing.TB, c *cluster.Cluster, namespace, name string, rules map[string][]rbacv1.PolicyRule) *rest.Config {
	t.Helper()
	kube := kubernetes.NewForConfigOrDie(c.RESTConfig())
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	suite.Create(t, kube.CoreV1().ServiceAccounts(namespace), account)
	for in, list := range rules {
		role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: list}
		suite.Create(t, kube.RbacV1().Roles(in), role)
		binding := &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
		}
		suite.Create(t, kube.RbacV1().RoleBindings(in), binding)
	}
	cfg, err := c.ServiceAccountConfig(t.Context(), namespace, name)
	require.NoError(t, err)
	return cfg
}

// Refused returns nil if err is a refusal by a policy of config/permissions, for lack of the permission in a namespace, with these words, and otherwise what is wrong with it.
func Refused(err error, namespace string, words ...string) error {
	if err == nil {
		return errors.New("accepted")
	}
	if !apierrors.IsForbidden(err) {
		return fmt.Errorf("not forbidden: %w", err)
	}
	for _, word := range append(words, "drive on releases.lockstep.dev in namespace "+namespace, "lockstep-operator") {
		if !strings.Contains(err.Error(), word) {
			return fmt.Errorf("the message lacks %q: %w", word, err)
		}
	}
	return nil
}
