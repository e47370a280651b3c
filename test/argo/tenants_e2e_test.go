// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"context"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/test/tenant"
)

// Users without the permission neither create nor change nor promote a Rollout that uses the plugin; others' Rollouts are none of
// Lockstep's business.
//
// Proves: Hosts' objects: only users with `drive` create or change them.
func TestTenants(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.deploy()
	editor, operator := tenant.Pair(t, e.Cluster, e.Namespace, rbacv1.PolicyRule{
		APIGroups: []string{"argoproj.io"}, Resources: []string{"rollouts", "rollouts/status"}, Verbs: []string{"*"},
	})
	manifest := rolloutManifest(name, pause+step("upgrade: 50%"))
	e.Eventually("the policy refuses a Rollout", func(context.Context) error {
		return tenant.Refused(editor.Create(rollouts, manifest), e.Namespace, ":editor", "rollouts.argoproj.io")
	})
	require.NoError(t, operator.Create(rollouts, manifest), "an operator")
	e.awaitRest("v1")
	for what, request := range map[string][]string{
		"restart":        {`{"spec":{"restartAt":"2026-01-01T00:00:00Z"}}`},
		"other steps":    {`{"spec":{"strategy":{"canary":{"steps":[]}}}}`},
		"without plugin": {`{"spec":{"strategy":{"canary":{"steps":null,"trafficRouting":null}}}}`},
		"pod template":   {`{"spec":{"template":{"metadata":{"annotations":{"lockstep.dev/revision":"other"}}}}}`},
		"promote":        {`{"status":{"promoteFull":true}}`, "status"},
		"abort":          {`{"status":{"abort":true}}`, "status"},
		"instance":       {`{"metadata":{"labels":{"argo-rollouts.argoproj.io/controller-instance-id":"other"}}}`},
		"mark":           {`{"metadata":{"annotations":{"lockstep.dev/seen-revision":"other"}}}`},
	} {
		assert.NoError(t, tenant.Refused(editor.Patch(rollouts, name, request[0], request[1:]...), e.Namespace, ":editor"), what)
		assert.NoError(t, operator.Patch(rollouts, name, request[0], request[1:]...), "%s: an operator", what)
	}
	assert.NoError(t, editor.Patch(rollouts, name, `{"metadata":{"labels":{"team":"a"}}}`), "a label")
	native := `
apiVersion: argoproj.io/v1alpha1
kind: Rollout
metadata: {name: native}
spec:
  replicas: 0
  selector: {matchLabels: {app: native}}
  template:
    metadata: {labels: {app: native}}
    spec: {containers: [{name: none, image: "example.com/none:v1"}]}
  strategy: {canary: {steps: [{setWeight: 50}]}}
`
	assert.NoError(t, editor.Create(rollouts, native), "a Rollout without the plugin")
}
