// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// tokenLifetime outlives any test run.
const tokenLifetime = 24 * time.Hour

// Kubeconfig returns the path of a self-contained kubeconfig for a cluster administrator.
func (c *Cluster) Kubeconfig() string { return c.path("admin.kubeconfig") }

// RESTConfig returns a client configuration for a cluster administrator, practically without client-side throttling. The caller
// owns the copy.
func (c *Cluster) RESTConfig() *rest.Config { return rest.CopyConfig(c.admin) }

// Dir returns the cluster's directory. It has the kubeconfigs, certificates, data and, in log/, each component's output.
func (c *Cluster) Dir() string { return c.dir }

// AuditLog returns the path of the API server's audit log, JSON lines of level Metadata, or "" without [WithAudit].
func (c *Cluster) AuditLog() string {
	if !c.options.audit {
		return ""
	}
	return c.path("audit.log")
}

// ServiceAccountConfig returns a client configuration with a token of an existing service account, so only with its permissions.
// The token is valid for a day.
func (c *Cluster) ServiceAccountConfig(ctx context.Context, namespace, name string) (*rest.Config, error) {
	request := &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(tokenLifetime.Seconds()))},
	}
	answer, err := c.kube.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("request token of service account %s/%s: %w", namespace, name, err)
	}
	cfg := rest.AnonymousClientConfig(c.admin)
	cfg.BearerToken = answer.Status.Token
	cfg.QPS, cfg.Burst = c.admin.QPS, c.admin.Burst
	return cfg, nil
}
