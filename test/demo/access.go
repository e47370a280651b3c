// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/config"
)

// accessName is the name of the driver's ServiceAccount, Role and RoleBinding.
const accessName = config.ServiceAccount

// permission is a verb on a resource.
type permission struct {
	verb, group, resource, subresource string
	// cluster is true for cluster-scoped objects.
	cluster bool
}

func (r permission) String() string {
	resource := r.resource
	if r.group != "" {
		resource += "." + r.group
	}
	if r.subresource != "" {
		resource += "/" + r.subresource
	}
	return r.verb + " " + resource
}

// demoPermissions returns what the demo itself needs.
func demoPermissions() []permission {
	const group, sets = "leaderworkerset.x-k8s.io", "leaderworkersets"
	return []permission{
		{verb: "create", resource: "namespaces", cluster: true},
		{verb: "get", resource: "namespaces", cluster: true},
		{verb: "delete", resource: "namespaces", cluster: true},
		{verb: "create", group: group, resource: sets},
		{verb: "get", group: group, resource: sets},
		{verb: "list", group: group, resource: sets},
		{verb: "patch", group: group, resource: sets},
		{verb: "delete", group: group, resource: sets},
		{verb: "list", resource: "pods"},
	}
}

// accessPermissions returns what creating the driver's own account needs.
func accessPermissions() []permission {
	return []permission{
		{verb: "create", resource: "serviceaccounts"},
		{verb: "create", resource: "serviceaccounts", subresource: "token"},
		{verb: "create", group: rbacv1.GroupName, resource: "roles"},
		{verb: "create", group: rbacv1.GroupName, resource: "rolebindings"},
	}
}

// driverPermissions returns the rules of config/base without which the driver does not serve.
func driverPermissions() ([]permission, error) {
	rules, err := driverRules()
	if err != nil {
		return nil, err
	}
	var permissions []permission
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				if !slices.Contains([]string{"leaderworkersets", "leaderworkersets/finalizers", "pods", "controllerrevisions", "events"}, resource) {
					continue
				}
				main, sub, _ := strings.Cut(resource, "/")
				for _, verb := range rule.Verbs {
					permissions = append(permissions, permission{verb: verb, group: group, resource: main, subresource: sub})
				}
			}
		}
	}
	return permissions, nil
}

// driverRules returns all rules of the driver in config/base.
func driverRules() ([]rbacv1.PolicyRule, error) {
	roles, err := config.DriverRules()
	if err != nil {
		return nil, fmt.Errorf("read the driver's rules: %w", err)
	}
	var rules []rbacv1.PolicyRule
	for _, name := range slices.Sorted(maps.Keys(roles)) {
		rules = append(rules, roles[name]...)
	}
	return rules, nil
}

// checkPermissions returns an error if the user lacks a permission. ownPermissions reports whether the driver has to use the
// user's.
func checkPermissions(ctx context.Context, reviews authorizationclient.SelfSubjectAccessReviewsGetter, namespace string) (ownPermissions bool, err error) {
	needed := demoPermissions()
	missing, err := missingPermissions(ctx, reviews, namespace, accessPermissions())
	if err != nil {
		return false, err
	}
	if ownPermissions = len(missing) > 0; ownPermissions {
		driver, err := driverPermissions()
		if err != nil {
			return false, err
		}
		needed = append(needed, driver...)
	}
	if missing, err = missingPermissions(ctx, reviews, namespace, needed); err != nil || len(missing) == 0 {
		return ownPermissions, err
	}
	return false, fmt.Errorf("you lack permissions to %s on this cluster: use a context of another user", strings.Join(missing, ", "))
}

// missingPermissions returns the permissions that the user lacks.
func missingPermissions(
	ctx context.Context, reviews authorizationclient.SelfSubjectAccessReviewsGetter, namespace string, permissions []permission,
) ([]string, error) {
	var missing []string
	for _, r := range permissions {
		attributes := &authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: r.verb, Group: r.group, Resource: r.resource, Subresource: r.subresource,
		}
		if r.cluster {
			attributes.Namespace = ""
		}
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: attributes}}
		answer, err := reviews.SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("check the permission to %s: %w", r, err)
		}
		if !answer.Status.Allowed && !slices.Contains(missing, r.String()) {
			missing = append(missing, r.String())
		}
	}
	return missing, nil
}

// createAccess creates the driver's account and its permissions in the demo's namespace.
func (e *existing) createAccess(ctx context.Context) error {
	rules, err := driverRules()
	if err != nil {
		return err
	}
	named := metav1.ObjectMeta{Name: accessName}
	rbac := e.core.RbacV1()
	if _, err := rbac.Roles(e.namespace).Create(ctx, &rbacv1.Role{ObjectMeta: named, Rules: rules}, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create Role %s/%s: %w", e.namespace, accessName, err)
	}
	_, err = e.core.CoreV1().ServiceAccounts(e.namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: named}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create ServiceAccount %s/%s: %w", e.namespace, accessName, err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: named,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: accessName},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: accessName, Namespace: e.namespace}},
	}
	if _, err := rbac.RoleBindings(e.namespace).Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create RoleBinding %s/%s: %w", e.namespace, accessName, err)
	}
	return nil
}

// driverKubeconfig writes the driver's kubeconfig: the user's context, with a token of the driver's account unless the driver uses
// the user's permissions.
func (e *existing) driverKubeconfig(ctx context.Context, path string) error {
	raw := e.raw.DeepCopy()
	if !e.ownPermissions {
		token, err := e.token(ctx)
		if err != nil {
			return err
		}
		raw.AuthInfos = map[string]*clientcmdapi.AuthInfo{accessName: {Token: token}}
		raw.Contexts[raw.CurrentContext].AuthInfo = accessName
	}
	if err := clientcmd.WriteToFile(*raw, path); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	if e.ownPermissions {
		return nil
	}
	return awaitAccess(ctx, path, e.namespace)
}

// token returns a token of the driver's account that outlives the demo.
func (e *existing) token(ctx context.Context) (string, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(3600))}}
	answer, err := e.core.CoreV1().ServiceAccounts(e.namespace).CreateToken(ctx, accessName, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("request token of ServiceAccount %s/%s: %w", e.namespace, accessName, err)
	}
	return answer.Status.Token, nil
}

// awaitAccess waits until the driver's permissions take effect.
func awaitAccess(ctx context.Context, kubeconfig, namespace string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create client: %w", err)
	}
	permissions, err := driverPermissions()
	if err != nil {
		return err
	}
	var missing []string
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, 2*answerTime, true, func(ctx context.Context) (bool, error) {
		missing, err = missingPermissions(ctx, client.AuthorizationV1(), namespace, permissions)
		if apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) {
			return false, nil // the account has not reached all API servers yet
		}
		return len(missing) == 0, err
	})
	if err != nil {
		return fmt.Errorf("wait for the permissions of ServiceAccount %s/%s to %s: %w", namespace, accessName, strings.Join(missing, ", "), err)
	}
	return nil
}
