// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"errors"
	"strings"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// A driver that may not read budgets answers at once, and says so.
func TestContextWithoutBudgets(t *testing.T) {
	policy, err := record.EncodePolicy(&pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"100%"}, GroupDisruptionBudget: true})
	if err != nil {
		t.Fatal(err)
	}
	stable := lwstest.WithRecord(t, lwstest.StableWorkload(), record.Record{Saved: record.Native(record.Hold()), Release: &record.Release{
		ID: "r1", Policy: policy, StableRevision: "old", UpdateRevision: "new", Phase: record.Promoted, StartedAt: lwstest.Noon, PhaseAt: lwstest.Noon,
	}})
	core := fake.NewClientset()
	core.PrependReactor("list", "poddisruptionbudgets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(policyv1.Resource("poddisruptionbudgets"), "", errors.New(`User "u" cannot list resource "poddisruptionbudgets"`))
	})
	b := newFixtureOn(t, core, lwstest.NoRoutes(), stable)
	b.run()
	b.eventually("the driver serves", func() bool { return b.engine.Ready() == nil })
	begun := time.Now()
	r, err := b.CalculateBatchContext(t.Context(), &pb.CalculateBatchContextRequest{Workload: &pb.WorkloadRef{Namespace: stable.Namespace, Name: stable.Name}})
	if took := time.Since(begun); err != nil || took > readTimeout/2 {
		t.Fatalf("the answer took %s: %v", took, err)
	}
	if c := r.GetContext(); c.GetState() != pb.State_STATE_PROMOTING || c.GetReason() != "DisruptionBudgetsNotSynced" ||
		!strings.Contains(c.GetMessage(), "can't be read") || !strings.Contains(c.GetMessage(), "poddisruptionbudgets") {
		t.Errorf("%s, %s: %s", c.GetState(), c.GetReason(), c.GetMessage())
	}
	begun = time.Now()
	_, err = b.Disown(t.Context(), &pb.DisownRequest{Workload: &pb.WorkloadRef{Namespace: stable.Namespace, Name: stable.Name}})
	if took := time.Since(begun); drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_FORBIDDEN || took > readTimeout/2 {
		t.Errorf("Disown took %s: %v", took, err)
	}
}
