// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// A release of a newer driver takes no request but the one to go back.
func TestNewerReleaseIsOnlyRolledBack(t *testing.T) {
	o := observed(t, `workload vllm replicas=4 revision=B hold
record version=2 phase=Progressing stable=A update=B
newer version
groups 0-3 revision=A ready=1h
canary vllm-b replicas=1 carries=B target=1@1m
groups 0 revision=B ready=1m`)
	for name, i := range map[string]Intent{
		"batch": SetTarget{ReleaseID: "r-1", Batch: ptr.To(1)}, "promote": Promote{ReleaseID: "r-1"},
		"begin": Begin{ReleaseID: "r-2", Policy: &pb.ReleasePolicy{}}, "weight": Route{ReleaseID: "r-1", Weight: ptr.To(10)},
	} {
		_, err := Decide(o, i)
		assert.True(t, drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_NEWER_DRIVER && strings.Contains(err.Error(), "lockstep abort"),
			"%s: %v", name, err)
	}
	d, err := Decide(o, RollBack{ReleaseID: "r-1"})
	a, ok := d.Action.(SetStable)
	assert.True(t, err == nil && ok && a.Record.Release.Phase == record.CleaningUp && a.Record.Version == 2, "rollback: %v, %+v", err, d.Action)
	assert.Error(t, checkDecision(o, nil, Decision{Action: ScaleCanary{Name: "vllm-b", Replicas: 0}}), "the loop may carry it on")
}

// Once it is rolled back, the workload can be given up, which removes the record, but not released under the old driver.
func TestNewerRecordIsDisowned(t *testing.T) {
	o := observed(t, `workload vllm replicas=4 revision=B hold
record version=2 phase=CleaningUp stable=A update=B
newer version
groups 0-3 revision=A ready=1h`)
	_, err := Decide(o, Begin{ReleaseID: "r-2", Policy: &pb.ReleasePolicy{}})
	assert.True(t, drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_NEWER_DRIVER && strings.Contains(err.Error(), "disown"), "begin: %v", err)
	d, err := Decide(o, Disown{})
	_, ok := d.Action.(RemoveRecord)
	assert.True(t, err == nil && ok, "disown: %v, %+v", err, d.Action)
}
