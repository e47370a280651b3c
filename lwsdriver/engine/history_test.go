// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/fakes"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// A driver that may not write the history does everything else, says what it lacks, and does not try all the time.
func TestHistoryForbidden(t *testing.T) {
	w := lwstest.WithRecord(t, lwstest.StableWorkload(), record.Record{UID: "stable", Saved: record.Native(record.Hold())})
	b := newFixtureOn(t, fake.NewClientset(lwstest.Revision(t, w, "new")), lwstest.NoRoutes(), w)
	fakes.React(&b.Core.Fake, "create", "controllerrevisions", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(appsv1.Resource("controllerrevisions"), "x", fmt.Errorf(`User "u" cannot create resource`))
	})
	s := &observe.Snapshot{Observation: plan.Observation{Key: lwstest.VLLM}, StableObject: w}
	s.Now, s.Stable.Revision = lwstest.Noon, "new"
	action := plan.SaveRevision{Entry: plan.Entry{Revision: "new", Number: 1}}
	_, err := b.recordHistory(t.Context(), s, action)
	assert.NoError(t, err, "it blocks the release")
	assert.Error(t, b.HistoryError(lwstest.VLLM), "the error is not kept")
	s = b.look()
	assert.True(t, s.HistoryUnread && s.Recheck == historyRetry, "the planner would ask again: %+v", s.Observation)
	b.forget(lwstest.VLLM)
	err = b.HistoryError(lwstest.VLLM)
	assert.NoError(t, err, "%v is remembered of a deleted workload", err)
}
