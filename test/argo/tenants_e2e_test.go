// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"context"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

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
	if err := operator.Create(rollouts, manifest); err != nil {
		t.Fatalf("an operator: %v", err)
	}
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
		if err := tenant.Refused(editor.Patch(rollouts, name, request[0], request[1:]...), e.Namespace, ":editor"); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if err := operator.Patch(rollouts, name, request[0], request[1:]...); err != nil {
			t.Errorf("%s: an operator: %v", what, err)
		}
	}
	if err := editor.Patch(rollouts, name, `{"metadata":{"labels":{"team":"a"}}}`); err != nil {
		t.Errorf("a label: %v", err)
	}
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
	if err := editor.Create(rollouts, native); err != nil {
		t.Errorf("a Rollout without the plugin: %v", err)
	}
}
