// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package kruise

import (
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// A Rollout of a target releases prefill and decode together, beside the old groups: the first template again rolls back and touches no
// stable group, and the next template is promoted, scaled up in mid-release.
//
// Proves: Hosts release a DisaggregatedSet: to the end, and back.
func TestDisaggregated(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	sets := schema.GroupVersionResource{Group: "disaggregatedset.x-k8s.io", Version: "v1", Resource: "disaggregatedsets"}
	s := suite.NewRoles(t, e.Cluster, e.Namespace, name)
	assert.Error(t, e.Cluster.Apply(t.Context(), e.Namespace, []byte(strings.Replace(target("other"), "workloadRef: {", "workloadRef: {kind: Deployment, ", 1))),
		"a target of a Deployment is accepted")
	e.Apply(strings.Replace(target(name), "workloadRef: {", "workloadRef: {kind: DisaggregatedSet, ", 1))
	e.Apply(rollout(quarters))
	e.awaitPhase("Healthy")
	e.awaitReady(name, metav1.ConditionTrue, "Held")
	stable := s.Leaders("v1")

	s.SetImage("v2")
	e.awaitPause(1)
	s.Await("v2", 1, 1)
	s.Await("v1", 4, 2)
	s.SetImage("v1")
	e.awaitDone()
	s.Await("v2", -1, -1)
	now := s.Leaders("v1")
	assert.True(t, maps.Equal(now, stable), "the leaders of the stable revision were %v and are %v", stable, now)

	s.SetImage("v3")
	s.Await("v3", 1, 1) // until then the Rollout shows the pause of the release before
	e.awaitPause(1)
	// Kruise leaves its partition as it is, with which 5 of 8 units could be updated. The step asks for a quarter.
	_, err := e.Objects(sets).Patch(t.Context(), name, types.JSONPatchType,
		[]byte(`[{"op":"replace","path":"/spec/roles/0/spec/replicas","value":8}]`), metav1.PatchOptions{})
	require.NoError(t, err)
	s.Await("v1", 8, 2)
	s.Await("v3", 2, 1)
	e.approve()
	e.awaitPause(2)
	s.Await("v3", 4, 1)
	s.Await("v1", 8, 2)
	e.approve()
	e.awaitDone()
	s.Await("v1", -1, -1)
	s.Await("v3", 8, 2)
	e.awaitReady(name, metav1.ConditionTrue, "Promoted")
	got := e.target(t.Context(), name).Status
	assert.True(t, got.UpdatedReadyReplicas == 8 && got.CurrentRevision == got.UpdateRevision, "the target's status is %s", asJSON(got))
}
