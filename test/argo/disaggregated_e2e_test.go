// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package argo

import (
	"maps"
	"strings"
	"testing"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// A Rollout releases prefill and decode together: an abort removes the new groups and touches no other, a retry is promoted, and its groups
// become the set.
//
// Proves: Hosts release a DisaggregatedSet: to the end, and back.
func TestDisaggregated(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	s := suite.NewRoles(t, e.Cluster, e.Namespace, name)
	e.Apply(strings.Replace(rolloutManifest(name, quarters), "workload: "+name, "workload: {kind: DisaggregatedSet, name: "+name+"}", 1))
	e.awaitPhase(v1alpha1.RolloutPhaseHealthy)
	stable := s.Leaders("v1")

	s.SetImage("v2")
	e.awaitPause(1)
	s.Await("v2", 1, 1)
	e.argo("promote", name)
	e.awaitPause(3)
	s.Await("v2", 2, 1)
	s.Await("v1", 4, 2)
	e.argo("abort", name)
	e.await("the abort", func(r *v1alpha1.Rollout) bool {
		return r.Status.Abort && r.Status.Phase == v1alpha1.RolloutPhaseDegraded
	})
	s.Await("v2", 0, 0)
	s.Await("v1", 4, 2)
	now := s.Leaders("v1")
	assert.True(t, maps.Equal(now, stable), "the leaders of the stable revision were %v and are %v", stable, now)

	e.argo("retry", "rollout", name)
	e.awaitPause(1)
	e.argo("promote", name)
	e.awaitPause(3)
	e.argo("promote", name)
	e.awaitPhase(v1alpha1.RolloutPhaseHealthy)
	s.Await("v1", -1, -1)
	s.Await("v2", 4, 2)
}
