// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package batchrelease

import (
	"context"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/test/suite"
	"github.com/lockstep-rollouts/lockstep/test/tenant"
)

// Users without the permission neither create nor change nor resume a BatchRelease of a LeaderWorkerSet.
//
// Proves: Hosts' objects: only users with `drive` create or change them.
func TestTenants(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.Deploy(groups, nil)
	editor, operator := tenant.Pair(t, e.Cluster, e.Namespace, rbacv1.PolicyRule{
		APIGroups: []string{"rollouts.kruise.io"}, Resources: []string{"batchreleases", "batchreleases/status"}, Verbs: []string{"*"},
	})
	plan := manifest(name, quarters("Partition"))
	e.Eventually("the policy refuses a BatchRelease", func(context.Context) error {
		return tenant.Refused(editor.Create(batchReleases, plan), e.Namespace, ":editor", "batchreleases.rollouts.kruise.io")
	})
	set := strings.NewReplacer("leaderworkerset.x-k8s.io/v1", "disaggregatedset.x-k8s.io/v1", "LeaderWorkerSet", "DisaggregatedSet").Replace(plan)
	err := tenant.Refused(editor.Create(batchReleases, set), e.Namespace, ":editor")
	assert.True(t, err == nil && set != plan, "of a DisaggregatedSet: %v", err)
	// The API server accepts what does not decode, and the host continues with all others.
	const tooMany = "99999999999"
	large := strings.NewReplacer("25%", tooMany, "50%", tooMany).Replace(plan)
	other := strings.NewReplacer("leaderworkerset.x-k8s.io/v1", "apps/v1", "LeaderWorkerSet", "Deployment", "name: vllm}\nspec", "name: other}\nspec").Replace(large)
	assert.NoError(t, editor.Create(batchReleases, other), "of a Deployment")
	require.NoError(t, operator.Create(batchReleases, plan), "an operator")
	e.awaitHeld()
	assert.NoError(t, operator.Create(batchReleases, strings.Replace(large, "name: vllm", "name: large", 2)), "an operator")
	suite.AwaitEvents(t, e.Kube, e.Namespace, "BatchRelease", "large", "Warning Undecodable")
	for what, request := range map[string][]string{
		"partition":  {`{"spec":{"releasePlan":{"batchPartition":2}}}`},
		"rollout id": {`{"metadata":{"labels":{"rollouts.kruise.io/rollout-id":"2"}}}`},
		"status":     {`{"status":{"phase":"Completed"}}`, "status"},
	} {
		assert.NoError(t, tenant.Refused(editor.Patch(batchReleases, name, request[0], request[1:]...), e.Namespace, ":editor"), what)
		assert.NoError(t, operator.Patch(batchReleases, name, request[0], request[1:]...), "%s: an operator", what)
	}
	// The release of the workload before would have no host.
	for _, ref := range []string{`{"name":"other"}`, `{"apiVersion":"apps/v1","kind":"Deployment"}`} {
		assert.ErrorContains(t, operator.Patch(batchReleases, name, `{"spec":{"workloadRef":`+ref+`}}`), "is immutable", "another workload")
	}
	assert.NoError(t, editor.Patch(batchReleases, "other", `{"spec":{"workloadRef":{"name":"another"}}}`), "of a Deployment")
}
