// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package batchrelease

import (
	"context"
	"maps"
	"strings"
	"testing"

	"github.com/openkruise/rollouts/api/v1beta1"
	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// A BatchRelease releases prefill and decode together. Its deletion rolls back and touches no stable group; the next one is promoted.
//
// Proves: Hosts release a DisaggregatedSet: to the end, and back.
func TestDisaggregated(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	s := suite.NewRoles(t, e.Cluster, e.Namespace, name)
	release := strings.Replace(manifest(name, quarters("Canary")), "leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet", "disaggregatedset.x-k8s.io/v1, kind: DisaggregatedSet", 1)
	e.Apply(release)
	e.awaitHeld()
	stable := s.Leaders("v1")

	s.SetImage("v2")
	e.awaitBatch(0)
	s.Await("v2", 1, 1)
	e.remove()
	e.Eventually("the BatchRelease is gone", func(ctx context.Context) error {
		_, err := e.release(ctx, name)
		return suite.Gone(err)
	})
	s.Await("v2", 0, 0)
	now := s.Leaders("v1")
	assert.True(t, maps.Equal(now, stable), "the leaders of the stable revision were %v and are %v", stable, now)

	e.Apply(release)
	e.awaitBatch(0)
	e.patch(`{"batchPartition":1}`)
	e.awaitBatch(1)
	s.Await("v2", 2, 1)
	s.Await("v1", 4, 2)
	e.patch(`{"batchPartition":2}`)
	e.awaitBatch(2)
	s.Await("v2", 4, 2)
	e.patch(`{"batchPartition":null,"finalizingPolicy":"WaitResume"}`)
	e.awaitPhase(v1beta1.RolloutPhaseCompleted)
	e.awaitEnd("promoted")
	s.Await("v1", -1, -1)
	s.Await("v2", 4, 2)
}
