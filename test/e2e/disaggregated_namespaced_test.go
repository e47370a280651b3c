// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/lockstep-rollouts/lockstep/config"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/deploy"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
	"github.com/lockstep-rollouts/lockstep/test/tenant"
)

// A driver that has its permissions in one namespace adopts no DisaggregatedSet until it may read admission policies in the cluster, and says
// so.
//
// Proves: Security: requests are those of docs/security.md, each right is used; the pods are restricted.
func TestDisaggregatedNamespaced(t *testing.T) {
	t.Parallel()
	roles, err := config.DriverRules()
	require.NoError(t, err)
	var rules []rbacv1.PolicyRule
	for _, part := range roles {
		rules = slices.Concat(rules, part)
	}
	s := newRoleSetOf(t, 2, 1, func(e *env) *driver.Driver {
		tenant.Account(t, e.cluster, e.namespace, config.ServiceAccount, map[string][]rbacv1.PolicyRule{e.namespace: rules})
		kubeconfig, err := driver.AccountKubeconfig(e.cluster, e.namespace, config.ServiceAccount)
		require.NoError(t, err)
		return driver.Start(t, kubeconfig, e.namespace)
	})
	adopt := func() error {
		_, err := s.driver.Adopt(t.Context(), &pb.AdoptRequest{Workload: s.ref()})
		return err
	}
	await.True(t, "the adoption is refused", func() bool { return adopt() != nil })
	mustFail(t, adopt(), pb.ErrorReason_ERROR_REASON_FORBIDDEN)
	require.ErrorContains(t, adopt(), "config/namespaced")

	manifest, err := deploy.NamespacedBounds()
	require.NoError(t, err)
	suite.Apply(t, s.cluster, "", string(bytes.ReplaceAll(manifest, []byte("namespace: "+config.Namespace), []byte("namespace: "+s.namespace))))
	s.adopt()
	s.awaitState(pb.State_STATE_HOLDING, "Held")
}
