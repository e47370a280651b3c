// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"testing"

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
	if _, err := b.recordHistory(t.Context(), s, action); err != nil {
		t.Errorf("it blocks the release: %v", err)
	}
	if b.HistoryError(lwstest.VLLM) == nil {
		t.Error("the error is not kept")
	}
	s = b.look()
	if !s.HistoryUnread || s.Recheck != historyRetry {
		t.Errorf("the planner would ask again: %+v", s.Observation)
	}
	b.forget(lwstest.VLLM)
	if err := b.HistoryError(lwstest.VLLM); err != nil {
		t.Errorf("%v is remembered of a deleted workload", err)
	}
}
